"""Who sent a request: what the kernel told the broker, and the name that the password database has for the user; through the
network, the name and the role of the key.

The database may be a server that does not answer: it is asked in a thread, once for each uid, and only the first request of a
uid waits for it, `NAME_SECONDS` at most.
"""

from __future__ import annotations

import asyncio
import pwd
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.failures import utf8

if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.worker import Request

NAME_SECONDS: Final = 0.5
NAME_LENGTH: Final = 64
"""Characters of a name."""
MOST: Final = 1000
"""Uids that are remembered."""

log = logs.get_logger()


def user_name(uid: int) -> str:
    """Empty for a user without one. Blocks."""
    try:
        return utf8(pwd.getpwuid(uid).pw_name[:NAME_LENGTH])
    except (KeyError, OSError, OverflowError):
        return ""


class Senders:
    """For one event loop."""

    def __init__(self, name: Callable[[int], str] = user_name) -> None:
        """`name` is called in a thread."""
        self._name = name
        self._names: dict[int, asyncio.Future[str]] = {}

    async def of(self, request: Request) -> dict[str, Any]:
        """`uid`, `gid`, `pid` and `user`, or `address`, `name` and `role`, as far as they are known."""
        known = {} if request.peer is None else asdict(request.peer)
        if (uid := known.get("uid")) is not None:
            known["user"] = await self._user(uid)
        return {key: value for key, value in known.items() if value not in (None, "")}

    async def _user(self, uid: int) -> str:
        if (asked := self._names.get(uid)) is None:
            if len(self._names) >= MOST:
                self._names.clear()
            asking = in_daemon_thread(partial(self._name, uid), name="user.name")
            asked = self._names[uid] = asyncio.ensure_future(asking)
            await asyncio.wait({asked}, timeout=NAME_SECONDS)
        if not asked.done():
            return ""
        if (
            error := asked.exception()
        ) is not None:  # no thread could be started: the next request asks again
            log.warning("user.unknown", uid=uid, reason=f"{type(error).__name__}: {error}")
            self._names.pop(uid, None)
            return ""
        return asked.result()

"""Base URLs of the model: one address for all sessions, or one for each session.

A proxy in front of the model can distinguish sessions by their address, to count, trace or route them.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from governor.errors import UsageError


class BaseURLProvider(Protocol):
    """Selects the base URL for a session. Called in the event loop before each answer: it must not block."""

    def get_base_url(self, session: Any) -> str:
        """For example ``http://host:8000/v1``; ``/chat/completions`` is appended."""
        raise NotImplementedError


class StaticBaseURLProvider:
    """The same address for every session. Raises UsageError for an invalid one."""

    def __init__(self, base_url: str) -> None:
        self.base_url = checked(base_url)

    def get_base_url(self, session: Any = None) -> str:  # noqa: ARG002 - the protocol's
        return self.base_url


class SessionSuffixBaseURLProvider:
    """``<root>/<session id>``: `session` has a `session_id` (or `id`). Raises UsageError for bad addresses."""

    def __init__(self, base_url_root: str) -> None:
        self.base_url_root = checked(base_url_root)

    def get_base_url(self, session: Any = None) -> str:
        if not (name := session_id(session)):
            raise UsageError(f"SessionSuffixBaseURLProvider needs a session with an id, not {session!r}")
        return below(self.base_url_root, quote(name, safe=""))


def session_id(session: Any) -> str | None:
    """The data manager's own id of the session, if it has one."""
    found = getattr(session, "session_id", None) or getattr(session, "id", None)
    return None if found is None else str(found)


def below(base_url: str, path: str) -> str:
    """The address of `path` below one that is `checked`. A query stays at the end, as ``?api-version=1`` of Azure."""
    address, mark, query = base_url.partition("?")
    return f"{address}/{path}{mark}{query}"


def checked(base_url: str) -> str:
    """`base_url` without slashes at the end of its path. Raises UsageError if it is not of the form ``http(s)://host...``."""
    try:
        parts = urlsplit(base_url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        fine = fine and "#" not in base_url
    except (AttributeError, TypeError, ValueError):
        fine = False
    if not fine:
        raise UsageError(f"{base_url!r} is no base URL: it should look like http://host:8000/v1")
    address, mark, query = base_url.partition("?")
    return f"{address.rstrip('/')}{mark}{query}"

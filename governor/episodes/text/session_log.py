"""The calls of an Interactor to its data manager, which may be the user's own with only `create_session` and `record_step`.

Rules:
1. Methods may be sync or async. Sync ones run in one thread beside the event loop, in the order of the calls.
2. A call that has begun always completes: the caller may be cancelled, the record is complete.
3. A manager whose `record_step` names `weight_version` gets it, and the environment's `info` as `env_state`. Another one, with
   ``**more`` too, gets what every manager gets, and the version in `env_state`, as JSON text: {"weight_version": 7}.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from governor.episodes.text.environments import user_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.episodes.text.actor_pool import ActorHandle


class SessionLog:
    """For one event loop."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._thread = user_calls.CallThread("session_log")
        self._calls: set[asyncio.Future[Any]] = set()
        self._takes_version = _names_version(manager)
        self._end: Callable[..., Any] | None = getattr(manager, "end_session", None)

    async def create_session(self, actor: ActorHandle, *, llm_model: str) -> Any:
        """In the phase of a run, whose manager is `DataManager`, it gets the number of the episode."""
        return await self._call(
            self._manager.create_session,
            env_id=actor.env_id,
            env_name=actor.env_name,
            llm_model=llm_model,
            group_id=actor.group_id,
            **({} if actor.episode is None else {"episode": actor.episode}),
        )

    async def record_step(self, session: Any, *, weight_version: int | None, info: Any, **step: Any) -> None:
        if self._takes_version:
            step |= {"weight_version": weight_version, "env_state": info or None}
        else:
            known = weight_version is not None
            step["env_state"] = json.dumps({"weight_version": weight_version}) if known else None
        await self._call(self._manager.record_step, session=session, **step)

    async def end_session(self, session: Any, *, outcome: str, reason: str) -> None:
        if self._end is not None:
            await self._call(self._end, session, outcome=outcome, reason=reason)

    def close(self) -> None:
        """May be called again."""
        self._thread.close()

    async def settle(self, seconds: float) -> None:
        """Waits for calls whose callers were cancelled, at most `seconds`."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=seconds)

    async def _call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        call = asyncio.create_task(user_calls.call(self._thread.run, function, *args, **named))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return await asyncio.shield(call)

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # else asyncio logs an exception that was never retrieved


def _names_version(manager: Any) -> bool:
    """Whether its `record_step` names `weight_version`, itself or, if it hands ``**more`` on, in a base class."""
    own = _parameters(manager.record_step)
    hands_on = any(one.kind is one.VAR_KEYWORD for one in own.values())
    bases = [vars(base)["record_step"] for base in type(manager).__mro__ if "record_step" in vars(base)]
    return any("weight_version" in names for names in (own, *map(_parameters, bases if hands_on else ())))


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C code
        return {}


def total_reward_of(session: Any) -> float | None:
    """The total that the manager keeps in its session; None without a finite number."""
    try:
        total = float(session.total_reward)
    except Exception:  # noqa: BLE001  # the session is the user's, and may have none
        return None
    return total if isfinite(total) else None

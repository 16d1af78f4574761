"""Text environments that cannot be pickled (locks, connections): each plays in a thread of the caller's process.

Rules:
1. A thread cannot be ended. An environment whose call does not return is left behind with its thread: it is counted, logged, and
   never played again, whichever handle names it.
2. The environment stays its owner's: nothing here closes it.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.episodes.text.environments import child
from governor.episodes.text.environments.environment import (
    EnvironmentFault,
    EnvironmentHung,
    decoded,
    prompt_of,
    step_of,
)
from governor.episodes.text.environments.user_calls import CallThread
from governor.failures import reason_of

if TYPE_CHECKING:
    from governor.episodes.text.environments.environment import TextStep

log = logs.get_logger()


class ThreadEnvironments:
    """Those of one Interactor, with what was left behind. For one event loop."""

    def __init__(self) -> None:
        self._left: list[TextThread] = []

    @property
    def hung(self) -> int:
        """The threads that are left behind and have not returned yet."""
        return sum(one.in_call for one in self._left)

    def environment(self, made: Any) -> TextThread:
        """Raises EnvironmentFault for an object that was left behind."""
        if any(one.made is made for one in self._left):
            raise EnvironmentFault(
                f"this {type(made).__name__} did not return from a call of an earlier episode: it is not used again"
            )
        return TextThread(made, self)

    def leave(self, one: TextThread) -> None:
        if one in self._left:
            return
        self._left.append(one)
        log.warning("environment.thread_left", environment=type(one.made).__name__, hung=self.hung)


class TextThread:
    """A text environment in a thread, for one episode. One call at a time; timeouts are in seconds."""

    def __init__(self, made: Any, all_of_them: ThreadEnvironments) -> None:
        self.made = made
        self.in_call = False
        self._all = all_of_them
        self._thread = CallThread(f"environment {type(made).__name__}")

    async def get_task_prompt(self, *, timeout: float) -> Any:  # noqa: ASYNC109 - one deadline, owned here
        return prompt_of(await self._call("get_task_prompt", seconds=timeout))

    async def step(self, action: str, *, key: str = "", timeout: float) -> TextStep:  # noqa: ARG002, ASYNC109 - a call is made once
        return step_of(await self._call("step", action, seconds=timeout))

    async def aclose(self) -> None:
        """Ends its thread, or leaves it behind in its call. May be called again."""
        self._thread.close()
        if self.in_call:
            self._all.leave(self)

    async def _call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """The result of user code, through JSON as from a process of its own. Raises EnvironmentFault."""
        limit = asyncio.timeout(seconds)
        self.in_call = True
        try:
            async with limit:
                value = await self._thread.run(partial(self._run, name, *arguments))
                if inspect.isawaitable(value):  # an async method runs in this event loop, where its tasks are
                    value = child.encoded(child.shaped(name, await value))
        except Exception as error:
            if limit.expired():
                left = "; its thread is left behind" if self.in_call else ""
                raise EnvironmentHung(f"{name}: no answer within {seconds:g} s{left}") from None
            raise EnvironmentFault(reason_of(error).within(name)) from error
        return decoded(value, where=name)

    def _run(self, name: str, *arguments: Any) -> Any:
        try:
            value = child.begun(self.made, name, *arguments)
            return value if inspect.isawaitable(value) else child.encoded(child.shaped(name, value))
        finally:
            self.in_call = False

"""From an ActorHandle to its text environment; those over HTTP share the connections of one Interactor.

A user's object with plain `get_task_prompt()` and `step(action)` is played in a process of its own for that one episode,
because a hang in this process could not be ended.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.text.environments.http_environment import HTTPEnvironments
from governor.episodes.text.environments.process import TextProcess
from governor.errors import UsageError

if TYPE_CHECKING:
    from governor.episodes.text.actor_pool import ActorHandle
    from governor.episodes.text.environments.environment import TextEnvironment

START_SECONDS: Final = 60.0


class ActorAccess:
    """For one event loop."""

    def __init__(self, *, retries: int, backoff: float) -> None:
        self._http = HTTPEnvironments(retries=retries, backoff=backoff)

    async def open(self, actor: ActorHandle) -> TextEnvironment:
        """Raises UsageError for a handle without an environment, EnvironmentFault if no process can be started."""
        local: Any = actor.local_env
        if actor.transport == "inproc" and local is not None:
            return local if _is_text_environment(local) else await _started(local)
        if actor.transport != "http" or not actor.base_url:
            raise UsageError(
                f"the actor has no environment: transport {actor.transport!r}, base_url {actor.base_url!r}"
            )
        return self._http.environment(
            base_url=actor.base_url, env_name=actor.env_name, env_id=actor.env_id, headers=actor.headers
        )

    async def release(self, actor: ActorHandle, environment: TextEnvironment | None) -> None:
        """Closes an environment that was started for this handle only; others belong to its pool. Raises ProcessError."""
        if isinstance(environment, TextProcess) and environment is not actor.local_env:
            await environment.aclose()

    async def aclose(self) -> None:
        """May be called again."""
        await self._http.aclose()


def _is_text_environment(local: Any) -> bool:
    step = getattr(local, "step", None)
    return inspect.iscoroutinefunction(step) and "key" in inspect.signature(step).parameters


async def _started(local: Any) -> TextProcess:
    process = TextProcess(local)
    try:
        await process.start(timeout=START_SECONDS)
    except BaseException:
        await process.aclose()
        raise
    return process

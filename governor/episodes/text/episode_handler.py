"""User hooks around each step of a text episode and after its end.

Rules:
1. A hook may be sync or async; a sync one runs in a thread of its own, never in the event loop's.
2. A hook that raises, or returns no list, fails only the episode that it was called for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from governor.episodes.text.environments import user_calls

if TYPE_CHECKING:
    from governor.episodes.text.environments.environment import Message


class EpisodeHandler:
    """A base class; any object with one or both of the two methods may be used, and either may be plain `def`."""

    async def handle(self, env_name: str, env_id: str, step: int, prompt: list[Message]) -> list[Message]:  # noqa: ARG002
        """The prompt to use instead, a list of chat messages. `step` counts from 1; the prompt is trimmed afterwards."""
        return prompt

    async def on_episode_end(
        self, *, env_name: str, env_id: str, total_reward: float, info: dict[str, Any] | None
    ) -> None:
        """Called at every end of an episode. `total_reward` is the undiscounted sum so far, `info` that of the last step or None."""


class HandlerCalls:
    """The handler, bound to one episode's environment."""

    def __init__(self, handler: Any, *, env_name: str, env_id: str) -> None:
        self._handler: Final = handler
        self._env_name = env_name
        self._env_id = env_id

    async def handle(self, step: int, prompt: list[Message]) -> list[Message]:
        hook = getattr(self._handler, "handle", None)
        if hook is None:
            return prompt
        changed: list[Message] = await user_calls.call(hook, self._env_name, self._env_id, step, prompt)
        return changed

    async def on_episode_end(self, *, total_reward: float, info: dict[str, Any] | None) -> None:
        hook = getattr(self._handler, "on_episode_end", None)
        if hook is not None:
            await user_calls.call(
                hook, env_name=self._env_name, env_id=self._env_id, total_reward=total_reward, info=info
            )

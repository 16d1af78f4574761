"""User hooks around each step of a text episode and after its end.

Rules:
1. A hook may be sync or async; a sync one runs in a thread of its own, never in the event loop's.
2. A `handle` that raises fails only the episode that it was called for; an `on_episode_end` that raises is logged, and the
   reward stands. A prompt that is no list ends the episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from governor.episodes.text.environments.environment import Message


class EpisodeHandler:
    """A base class; any object with one or both of the two methods may be used, and either may be plain `def`."""

    async def handle(self, env_name: str, env_id: str, step: int, prompt: list[Message]) -> list[Message]:  # noqa: ARG002
        """The prompt to use instead, a list of chat messages; `prompt` is whatever the environment gave. `step` counts from 1; the prompt
        is trimmed afterwards.
        """
        return prompt

    async def on_episode_end(
        self, env_name: str, env_id: str, total_reward: float, info: dict[str, Any] | None = None
    ) -> None:
        """Called at every end of an episode. `total_reward` is that of the session so far, `info` that of the last step if it is a mapping, or None."""


class NullEpisodeHandler(EpisodeHandler):
    """Changes no prompt, and does nothing at the end; the default of an Interactor."""

"""The limits of a run that are counted in episodes: `limits.steps` and `limits.episodes`, over all of its phases.

They are looked at when episodes are on record, before the report is acknowledged: the answer to it carries the flow
control of a run that is on its way out (`RunGovernor.flow`), so no further episode begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from governor.messages import EpisodeRecord
    from governor.run_model import Limits

    Exceeded: TypeAlias = tuple[Literal["steps", "episodes"], int]


class Budget:
    """Fed with each episode once, evaluation included."""

    def __init__(self, limits: Limits, *, done: Iterable[EpisodeRecord] = ()) -> None:
        """`done`: in an earlier invocation of the daemon."""
        self._limits = limits
        self._steps = self._episodes = 0
        self._told = False
        for record in done:
            self._count(record)

    def spend(self, records: Iterable[EpisodeRecord]) -> Exceeded | None:
        """The limit that is exceeded with them, and what it allows; said once."""
        for record in records:
            self._count(record)
        if self._told:
            return None
        steps, episodes = self._limits.steps, self._limits.episodes
        exceeded: Exceeded | None = None
        if episodes is not None and self._episodes > episodes:
            exceeded = "episodes", episodes
        elif steps is not None and self._steps > steps:
            exceeded = "steps", steps
        self._told = exceeded is not None
        return exceeded

    def _count(self, record: EpisodeRecord) -> None:
        self._episodes += 1
        self._steps += record.steps

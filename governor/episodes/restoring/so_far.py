"""What an agent is to know of a phase: the episodes that have ended, and whether its training can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from governor.episodes.learned import Told
from governor.episodes.transition import Episode
from governor.index_ranges import IndexRanges

if TYPE_CHECKING:
    from governor.messages import StartSimulation


class PhaseSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """A phase, as an agent is to know it: the episodes that have ended, by the `bounds` of their ranges. The first `episodes` are training ones if it `trains`; those of
    an evaluation are `of_evaluation`, 0 without. `obstacle`: why it cannot be replayed, or "".
    """

    name: str
    trains: bool
    episodes: int
    of_evaluation: int
    bounds: tuple[int, ...]
    obstacle: str = ""

    @classmethod
    def of(cls, command: StartSimulation, ended: IndexRanges) -> PhaseSoFar:
        return cls(
            name=command.name,
            trains=command.mode == "train",
            episodes=command.episodes,
            of_evaluation=0 if command.evaluate is None else command.evaluate.episodes,
            bounds=tuple(ended.bounds),
            obstacle=obstacle_of(command),
        )

    @property
    def ended(self) -> IndexRanges:
        return IndexRanges([*self.bounds])

    @property
    def told(self) -> Told:
        """As of an agent that has learned all of it."""
        return Told(self.name, self.trains, self.ended)

    def is_known_to(self, told: Told) -> bool:
        """Whether an agent that was told so has learned just this."""
        if told.phase != self.name:
            return not self.ended  # else an earlier process has played the phase
        ended = IndexRanges([*told.ended.bounds])
        if told.current is not None:
            if self.told_of(told.current, 0).explore:
                return False
            ended.add(told.current)  # of an evaluation: its end is not told
        return ended == self.ended

    def told_of(self, index: int, seed: int) -> Episode:
        evaluates = self.of_evaluation and index >= self.episodes
        return Episode(
            number=index,
            phase=self.name,
            seed=seed,
            explore=self.trains and index < self.episodes,
            evaluation=(index - self.episodes) // self.of_evaluation + 1 if evaluates else 0,
        )


def obstacle_of(command: StartSimulation) -> str:
    """Why the training of this phase cannot be replayed, as far as the run file says it; "" if it can."""
    if len(command.agents) > 1 or command.players:
        return "several players: the order of their calls is not on record"
    if command.vector > 1 or command.vector_mode != "sync":
        order, last = "the order in which its episodes are learned", "what the last step of an episode led to"
        return f"vector: {command.vector}: {order if command.vector > 1 else last} is not on record"
    if command.workers > 1:
        return f"{command.workers} workers: the order of their steps is not on record"
    if command.failures is not None and command.failures.retries:
        return "failures.retry: an attempt that has failed is learned, too, and not replayed"
    if command.max_staleness and command.mode == "train":
        return "max_staleness: how old the weights of an action were does not follow from the record"
    return ""

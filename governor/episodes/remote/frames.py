"""What the messages of the data plane (`wire`) are made of, and those of a vector whose environments step together."""

from __future__ import annotations

from typing import Any

import msgspec

from governor.messages import EpisodeOutcome  # noqa: TC001  # msgspec reads it at run time


class WireFrame(msgspec.Struct, frozen=True, array_like=True):
    """Root of everything on the data plane."""

    number: int


class EndedEpisode(msgspec.Struct, frozen=True, array_like=True):
    """An episode of an agent's session, in one of its slots, as it was recorded."""

    slot: int
    episode: int
    outcome: EpisodeOutcome
    value: float
    steps: int
    values: dict[str, float] = {}


class RowFault(msgspec.Struct, frozen=True, array_like=True):
    """As `FaultFrame`, for one row; the other rows are valid."""

    row: int
    where: str
    reason: str
    traceback: str = ""


class BegunEpisode(msgspec.Struct, frozen=True, array_like=True):
    """An episode that begins in this slot, with the observation that is there."""

    slot: int
    episode: int
    seed: int


class FinishedRow(msgspec.Struct, frozen=True, array_like=True):
    """A training episode whose last step has this `end`, in bits, with its return and the number of its steps."""

    slot: int
    end: int
    value: float
    steps: int


# -- a vector whose environments step together: arrays have a row for each of them ---------------------------------------


class StepTogetherFrame(WireFrame, frozen=True, tag=17):
    """A step of all. In the slots `begun` an episode has begun since the last step; in `slots` one for which nobody was asked for a
    reset: `episodes`, `phase` and `evaluation` as of `ResetManyFrame`.
    """

    actions: Any
    begun: list[int] = []
    slots: list[int] = []
    episodes: list[int] = []
    phase: str = ""
    evaluation: int = 0


class SteppedTogetherFrame(WireFrame, frozen=True, tag=18):
    """Answer to it and, of such a vector, to `ResetManyFrame`, as `VectorEnvironment` has it: arrays of the observations, of those whose
    episode can begin (`fresh`), and after a step of the rewards. `terminated` and `truncated` are None where no episode has ended,
    `following` where that is what `observations` are. Rows of `faults` are slots; `reported` is by slot.
    """

    observations: Any
    fresh: Any
    resets_single: bool
    rewards: Any = None
    terminated: Any = None
    truncated: Any = None
    following: Any = None
    faults: list[RowFault] = []
    reported: dict[int, Any] = {}


class ActTogetherFrame(WireFrame, frozen=True, tag=19):
    """The agent learns from the last step of all slots for which it has acted, but those `without` one, hears of `finished` and `begun`
    episodes, and acts for these `slots`: None for the same ones as before. `observations` have a row for each environment, of which the
    first is slot `first`. `rewards` and `following` are None where nobody learns, `following` also where that is what `observations` are.
    `ended` is as of `BeginFrame`.
    """

    observations: Any
    first: int
    slots: list[int] | None
    train: bool
    rewards: Any = None
    following: Any = None
    without: list[int] = []
    finished: list[FinishedRow] = []
    begun: list[BegunEpisode] = []
    phase: str = ""
    evaluation: int = 0
    ended: list[EndedEpisode] = []


class ActedTogetherFrame(WireFrame, frozen=True, tag=20):
    """Answer to it: an array of actions for the slots that have no fault, in their order. Rows of `faults` are slots; those of
    `finished_faults` are slots whose episode had finished. `reported` and `finished_reported` are by slot.
    """

    actions: Any
    weight_version: int
    faults: list[RowFault] = []
    finished_faults: list[RowFault] = []
    reported: dict[int, Any] = {}
    finished_reported: dict[int, Any] = {}

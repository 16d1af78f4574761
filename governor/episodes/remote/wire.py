"""The data plane: the messages between a simulation controller and one environment or one agent, step by step.

Rules:
1. A request has a number and its answer repeats it, so a stale answer is never taken for a new one.
2. A step is one round trip to the agent and one to the environment: the act request carries the reward of the previous
   step, and the agent's host stores the last observation and action. `FinishFrame` carries the last transition of an episode.
3. A fault of the other side is an answer (`FaultFrame`), never silence.
4. Structs are arrays on the wire: a FrozenLake step is 5 bytes one way and 18 back. Large arrays are beside it (`shared_arrays`).

An observation or action is an int for a `Discrete` space, a text for a `Text`, for the other simple spaces an array with the dtype
and shape of its space; a value with parts is its encoding (`spaces.encodings`), which has no keys. In the frames of a vector numbers
are one array of shape (rows, *shape of the space), others a list; rewards and ends have one item for each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np

from governor.episodes.arrays import WireError, encode_hook
from governor.episodes.remote.frames import (
    ActedTogetherFrame,
    ActTogetherFrame,
    EndedEpisode,
    RowFault,
    SteppedTogetherFrame,
    StepTogetherFrame,
    WireFrame,
)
from governor.episodes.remote.shared_arrays import decode_hook
from governor.episodes.spaces import Discrete, is_array
from governor.messages import EpisodeOutcome  # noqa: TC001  # msgspec reads it at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.spaces import SpaceSpec
    from governor.failures import Reason


class ResetFrame(WireFrame, frozen=True, tag=1):
    """`seed` has 32 bits. `episode` is its number in the phase. `info`: what is wanted of infos, as of `StartSimulation`.
    `evaluation`: the number of the evaluation that it belongs to, from 1; 0 for none. `whole_info`: an agent wants the whole infos.
    `masked`: action masks are wanted (`masks`).
    """

    seed: int
    episode: int = -1
    phase: str = ""
    info: Any = None
    evaluation: int = 0
    whole_info: bool = False
    masked: bool = False


class StepFrame(WireFrame, frozen=True, tag=2):
    action: Any


class ObservedFrame(WireFrame, frozen=True, tag=3):
    """Answer to `ResetFrame`. `info` is the row of its info (`episodes.info`), `reported` what user code has reported since the last
    answer (`metrics.Sums`), None for nothing; `mask` the action mask, None for none. So it is with the other frames.
    """

    observation: Any
    info: Any = None
    reported: Any = None
    mask: Any = None


class SteppedFrame(WireFrame, frozen=True, tag=4):
    """Answer to `StepFrame`. `whole_info` is the info as plain data (`step_info`), None if it is not wanted."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Any = None
    whole_info: Any = None
    reported: Any = None
    mask: Any = None


class BeginFrame(WireFrame, frozen=True, tag=5):
    """The first observation of an episode; the answer is `ActedFrame`. `episode`, `seed` and `evaluation`: as of `ResetFrame`. `ended`
    are the episodes of this session that ended, for agents that want to know. `settled`: so many of its `FinishFrame` were of episodes
    that are never played again.
    """

    observation: Any
    train: bool
    episode: int = -1
    phase: str = ""
    evaluation: int = 0
    seed: int = -1
    ended: list[EndedEpisode] = []
    mask: Any = None
    settled: int = 0


class ActFrame(WireFrame, frozen=True, tag=6):
    """A later observation, with the reward and the whole info that came with it; the answer is `ActedFrame`."""

    observation: Any
    reward: float
    info: Any = None
    mask: Any = None


class ActedFrame(WireFrame, frozen=True, tag=7):
    """`weight_version` is the version of the weights that chose the action."""

    action: Any
    weight_version: int = 0
    reported: Any = None


class FinishFrame(WireFrame, frozen=True, tag=8):
    """The last step of an episode in train mode; `FinishedFrame` is the answer, when it is learned."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Any = None


class FinishedFrame(WireFrame, frozen=True, tag=9):
    """Answer to `FinishFrame` and `SaveFrame`."""

    reported: Any = None


class FaultFrame(WireFrame, frozen=True, tag=10):
    """Answer to any request: `where` is ``environment.step``, ``agent.act`` and so on, `reason` one line, `traceback` that of user code."""

    where: str
    reason: str
    traceback: str = ""


class SaveFrame(WireFrame, frozen=True, tag=11):
    """The agent's part in the phase is over: saves what was learned; `FinishedFrame` is the answer, when it is on disk. `ended`: as of `BeginFrame`."""

    ended: list[EndedEpisode] = []


# -- a vector: many slots in one message. Rows of observations and actions are one array ------------------------------


class ResetManyFrame(WireFrame, frozen=True, tag=12):
    """All of its episodes belong to the same evaluation, or to none: so do those of `ActManyFrame`."""

    slots: list[int]
    seeds: list[int]
    episodes: list[int] = []
    phase: str = ""
    info: Any = None
    evaluation: int = 0
    whole_info: bool = False
    masked: bool = False


class StepManyFrame(WireFrame, frozen=True, tag=13):
    slots: list[int]
    actions: Any


class SteppedManyFrame(WireFrame, frozen=True, tag=14):
    """Answer to `ResetManyFrame` (rewards and ends have no meaning then) and `StepManyFrame`: a row for each slot, in that order.
    `infos`, `reported`, `whole_infos` and `masks` have an item for each row, or are None.
    """

    observations: Any
    rewards: list[float]
    ends: list[int]
    faults: list[RowFault]
    infos: Any = None
    reported: Any = None
    whole_infos: Any = None
    masks: Any = None


class ActManyFrame(WireFrame, frozen=True, tag=15):
    """A row for each new observation: `kinds` are FIRST, NEXT and LAST, as `BeginFrame`, `ActFrame` and `FinishFrame`.

    A slot may have two rows, the last one of an episode before the first one of the next. `episodes` and `seeds`: as in `ResetFrame`,
    for the FIRST rows only, in their order. `infos` are the whole ones, with an item for each row, or None; `ended` as of `BeginFrame`.
    """

    slots: list[int]
    kinds: list[int]
    observations: Any
    rewards: list[float]
    ends: list[int]
    train: bool
    episodes: list[int] = []
    phase: str = ""
    evaluation: int = 0
    seeds: list[int] = []
    infos: Any = None
    ended: list[EndedEpisode] = []
    masks: Any = None


class ActedManyFrame(WireFrame, frozen=True, tag=16):
    """An action for each row that is not LAST and has no fault; `rows` are their numbers. `reported` has an item for each row
    of the request, or is None.
    """

    rows: list[int]
    actions: Any
    weight_version: int
    faults: list[RowFault]
    reported: Any = None


# -- several players: all of them in one message to the environment, those of an agent in one to that agent ---------------


class PlayersStepFrame(WireFrame, frozen=True, tag=30):
    """`actions` by player, of those who act; `last`: as of `players.game.Game.step`."""

    actions: dict[str, Any]
    last: bool


class PlayersSteppedFrame(WireFrame, frozen=True, tag=31):
    """Answer to `PlayersStepFrame` and, by an environment of several players, to `ResetFrame`: as `players.game.Stepped`, where
    `seen` has (observation, mask, whole info) and `ends` has bits.
    """

    acting: list[str]
    seen: dict[str, tuple[Any, Any, Any]]
    rewards: dict[str, float]
    ends: dict[str, int]
    info: Any = None
    reported: Any = None


class PlayerRow(msgspec.Struct, frozen=True, array_like=True):
    """A new observation of a player: as a row of `ActManyFrame`. `step` is that of its last turn."""

    player: str
    kind: int
    observation: Any
    reward: float = 0.0
    end: int = 0
    step: int = -1
    info: Any = None
    mask: Any = None


class PlayersBeginFrame(WireFrame, frozen=True, tag=32):
    """The agent plays in a new episode; `FinishedFrame` is the answer. `prefix` is put before the names of its metrics."""

    train: bool
    episode: int = -1
    phase: str = ""
    evaluation: int = 0
    prefix: str = ""
    seed: int = -1
    ended: list[EndedEpisode] = []


class PlayersActFrame(WireFrame, frozen=True, tag=33):
    """All rows are learned, in their order, then the agent acts for those that are not LAST."""

    rows: list[PlayerRow]


class PlayersActedFrame(WireFrame, frozen=True, tag=34):
    """Answer to `PlayersActFrame`: an action for each row that is not LAST."""

    actions: list[Any]
    weight_version: int = 0
    reported: Any = None


class PlayersFinishFrame(WireFrame, frozen=True, tag=35):
    """An episode in train mode has ended like this, and all of its rows were sent; `FinishedFrame` is the answer, when it is learned."""

    outcome: EpisodeOutcome
    value: float
    steps: int
    values: dict[str, float]


FIRST: Final = 0
NEXT: Final = 1
LAST: Final = 2
TERMINATED: Final = 1
TRUNCATED: Final = 2
"""Bits of `ends`."""

PlayersRequest: TypeAlias = PlayersBeginFrame | PlayersActFrame | PlayersFinishFrame
EnvironmentRequest: TypeAlias = (
    ResetFrame | StepFrame | ResetManyFrame | StepManyFrame | StepTogetherFrame | PlayersStepFrame
)
AgentRequest: TypeAlias = (
    BeginFrame | ActFrame | FinishFrame | SaveFrame | ActManyFrame | ActTogetherFrame | PlayersRequest
)
Answer: TypeAlias = (
    ObservedFrame
    | SteppedFrame
    | ActedFrame
    | FinishedFrame
    | FaultFrame
    | SteppedManyFrame
    | ActedManyFrame
    | SteppedTogetherFrame
    | ActedTogetherFrame
    | PlayersSteppedFrame
    | PlayersActedFrame
)

encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode


def packed_rows(spec: SpaceSpec, rows: Sequence[Any]) -> Any:
    """Values of a space, each as it is sent, for a frame of a vector."""
    return np.array(rows) if isinstance(spec, Discrete) or is_array(spec) else rows


def rows_of(spec: SpaceSpec, packed: Any) -> Sequence[Any]:
    """Back again."""
    rows: Sequence[Any] = packed.tolist() if isinstance(spec, Discrete) else packed
    return rows


def fault(number: int, where: str, reason: Reason) -> FaultFrame:
    """The answer to a request whose user code has failed."""
    return FaultFrame(number, where, str(reason), reason.traceback)


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """A function that decodes a message of this kind, or raises WireError."""
    decode_kind = msgspec.msgpack.Decoder(kind, ext_hook=decode_hook).decode

    def decode(data: bytes) -> Any:
        try:
            return decode_kind(data)
        except msgspec.MsgspecError as error:
            raise WireError(str(error)) from error

    return decode


decode_environment_request: Callable[[bytes], EnvironmentRequest] = _decoder(EnvironmentRequest)
decode_agent_request: Callable[[bytes], AgentRequest] = _decoder(AgentRequest)
decode_answer: Callable[[bytes], Answer] = _decoder(Answer)

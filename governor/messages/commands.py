"""From the daemon to conductors: commands, with the sections of the run file that go into them.

Such a section is declared here alone: as it is written in a run file, so it is sent, and validated again where it arrives.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

import msgspec
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from governor.messages.base import FailureKind, Message
from governor.messages.conductor import (
    ChangeTasksCommand,
    ChangeWorkCommand,
    PausePartCommand,
    Ping,
    Retire,
    Shutdown,
    StopPartCommand,
    TaskSpec,
)
from governor.messages.figures import PhaseFigures
from governor.messages.results import EndedRuns
from governor.units.fields import (
    MAPPING,
    WORD,
    AnyDuration,
    Count,
    Duration,
    Entry,
    Metric,
    Params,
    Share,
)
from governor.units.sections import Section


class Until(Section):
    """One condition: on a `metric`, on `steps`, on `wall_clock`, or of your own (`entry`)."""

    metric: Annotated[
        Metric | None,
        Field(
            description="Of an episode: `return`, `steps`, `seconds`, `return.PLAYER`, a key of `simulate.info`, or a name of "
            "`simulate.reports`."
        ),
    ] = None
    at_least: Annotated[float | None, Field(description="Holds when the metric's mean is this or more.")] = (
        None
    )
    at_most: Annotated[
        float | None, Field(description="Holds when the metric's mean is this or less.", examples=[20])
    ] = None
    average_over: Annotated[
        Count, Field(description="Episodes, the last ones, that the mean is taken of.")
    ] = 1
    steps: Annotated[
        Annotated[int, Field(ge=1, lt=2**63)] | None,
        Field(
            description="Holds when the phase's training episodes have taken so many steps.",
            examples=[1000000],
        ),
    ] = None
    wall_clock: Annotated[
        Duration | None,
        Field(
            description="Holds after this time of playing; episodes that run then are cancelled.",
            examples=["30min"],
        ),
    ] = None
    entry: Annotated[
        Entry | None,
        Field(
            description="A condition of your own: `module:Class`, asked at the end of each episode, which answers with a flow "
            "control.",
            examples=["conditions:MovingAverage"],
        ),
    ] = None
    params: Annotated[
        Params, Field(description="Keyword arguments of the constructor.", examples=[{"window": 50}])
    ] = {}

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = ("metric", "steps", "wall_clock", "entry")
        if sum(getattr(self, name) is not None for name in kinds) != 1:
            raise ValueError("must have one of 'metric', 'steps', 'wall_clock' and 'entry'")
        _one_bound(self, needed=self.metric is not None)
        if self.entry is None and self.params:
            raise ValueError("'params' has no meaning without 'entry'")
        if self.metric is None and self.average_over != 1:
            raise ValueError("'average_over' has no meaning without 'metric'")
        return self


def _one_bound(section: Until | Evaluate, *, needed: bool) -> None:
    given = [name for name in ("at_least", "at_most") if getattr(section, name) is not None]
    if len(given) > 1:
        raise ValueError("must have one of 'at_least' and 'at_most', not both")
    if needed and not given:
        raise ValueError("'at_least' or 'at_most' is missing")
    if given and section.metric is None:
        raise ValueError(f"'{given[0]}' has no meaning without 'metric'")


class Plateau(Section):
    """Met when evaluations no longer improve."""

    patience: Annotated[
        Count, Field(description="Evaluations in a row that were not better than the best earlier one.")
    ]
    min_delta: Annotated[float, Field(ge=0, description="How much better counts as better.")] = 0.0
    direction: Annotated[
        Literal["max", "min"], Field(description="Whether more or less of the metric is better.")
    ] = "max"
    window: Annotated[Count, Field(description="Evaluations, the last ones, whose mean is compared.")] = 1


class Evaluate(Section):
    """Evaluations: training pauses for episodes that neither explore nor learn."""

    every: Annotated[Count, Field(description="Training episodes between two evaluations.")]
    episodes: Annotated[Count, Field(description="Episodes of one evaluation.")] = 10
    metric: Annotated[Metric, Field(description="What is looked at: as in `until`.")] = "return"
    at_least: Annotated[
        float | None, Field(description="The phase ends when the metric's mean is this or more.")
    ] = None
    at_most: Annotated[
        float | None,
        Field(description="The phase ends when the metric's mean is this or less.", examples=[20]),
    ] = None
    consecutive: Annotated[Count, Field(description="Evaluations in a row that must reach the bound.")] = 1
    plateau: Annotated[
        Plateau | None,
        Field(description="The phase ends when evaluations no longer improve; null: it does not."),
    ] = None

    @model_validator(mode="after")
    def _has_one_direction(self) -> Self:
        _one_bound(self, needed=self.consecutive != 1)
        bound = "max" if self.at_least is not None else "min" if self.at_most is not None else None
        if self.plateau is not None and bound not in (None, self.plateau.direction):
            raise ValueError(f"the plateau's direction must be {bound}, as that of the bound")
        return self


class Checkpoint(Section):
    """States of the agents that are kept, in `checkpoints/PHASE/` of the run's folder."""

    every: Annotated[
        Count | None, Field(description="Training episodes between two of them; null: none between.")
    ] = None
    keep: Annotated[Count | None, Field(description="So many of the last ones stay; null: all.")] = None
    best: Annotated[
        bool,
        Field(
            description="Keep the best one by the evaluation's metric, else by the mean of `metric` since the last."
        ),
    ] = False
    metric: Annotated[
        Metric,
        Field(description="What tells the best one without `evaluate`: as in `until`.", examples=["loss"]),
    ] = "return"
    direction: Annotated[
        Literal["max", "min"],
        Field(description="Whether more or less of the metric is better.", examples=["min"]),
    ] = "max"
    last: Annotated[bool, Field(description="Keep the one at the end of the phase.")] = False


class Failures(Section):
    """What a phase bears of failed episodes and of failed tasks, each counted on their own."""

    at_most: Annotated[
        Share | None,
        Field(
            description="Failures that do not end the phase: a number, or a part of all that are planned, rounded down; null: "
            "0, or no bound where `consecutive` is set.",
            examples=["1%"],
        ),
    ] = None
    consecutive: Annotated[
        Count | None,
        Field(
            description="So many failures one after the other end the phase; null: no such bound.",
            examples=[20],
        ),
    ] = None
    retry: Annotated[
        Annotated[
            Annotated[int, Field(ge=0, le=1000), Tag(WORD)]
            | Annotated[dict[FailureKind, Annotated[int, Field(ge=0, le=1000)]], Tag(MAPPING)],
            Discriminator(lambda given: MAPPING if isinstance(given, dict) else WORD),
        ],
        Field(
            description="How often an episode that failed is played again, and a task without `retries` is tried again: a number, "
            "or a mapping of kinds of failures to numbers.",
            examples=[{"infrastructure": 3}],
        ),
    ] = 0

    @property
    def retries(self) -> dict[str, int]:
        """By kind of failure, without zeros."""
        each = (
            self.retry if isinstance(self.retry, dict) else dict.fromkeys(get_args(FailureKind), self.retry)
        )
        return {kind: number for kind, number in each.items() if number}


class DynamicTimeoutSpec(Section):
    """Attempts get ``min(timeout, ratio * mean)``, of the wall times of train phases with the same settings."""

    ratio: Annotated[float, Field(gt=0, description="Factor on the mean wall time.")] = 3.0
    warmup_min_steps: Annotated[
        int, Field(ge=0, le=1_000_000, description="Train phases that must be over before it applies.")
    ] = 1
    percentile: Annotated[
        Annotated[float, Field(ge=0, le=100)] | None,
        Field(
            description="This percentile of the last `window` wall times counts in place of the mean; null: the mean."
        ),
    ] = None
    window: Annotated[Count, Field(description="Wall times that the percentile is taken of.")] = 256
    floor: Annotated[AnyDuration, Field(description="What an attempt gets at least.")] = 1.0


class Wrapper(Section):
    """What is built around an environment: `entry` is called with the environment, and with `params` as keywords."""

    entry: Annotated[
        Entry,
        Field(
            description="What builds it: `module:Class`; a function that takes an environment will do.",
            examples=["gymnasium.wrappers:FrameStackObservation"],
        ),
    ]
    params: Annotated[
        Params,
        Field(
            description="Keyword arguments, without the environment, which is the first one.",
            examples=[{"stack_size": 4}],
        ),
    ] = {}


VectorMode: TypeAlias = Literal["sync", "async", "native"]


class Vector(Section):
    """Environments that each worker steps together."""

    num_envs: Annotated[int, Field(ge=1, le=1024, description="Number of environments.", examples=[64])]
    mode: Annotated[
        VectorMode,
        Field(
            description="`sync`: one by one, in one thread. `async`: each in a process of its own, all at once. `native`: the "
            "entry builds a `gymnasium.vector.VectorEnv`, which steps all by itself. The last two: not with `transport: ray`.",
            examples=["native"],
        ),
    ] = "sync"


AnyVector: TypeAlias = Annotated[
    Vector,
    BeforeValidator(
        lambda given: {"num_envs": given} if type(given) is int else given,
        json_schema_input_type=Annotated[int, Field(ge=1, le=1024)] | Vector,
    ),
]
"""Written as a number where its mode is ``sync``."""


AnyWrapper: TypeAlias = Annotated[
    Wrapper,
    BeforeValidator(
        lambda given: {"entry": given} if isinstance(given, str) else given,
        json_schema_input_type=str | Wrapper,
    ),
]
"""Written as a text where it has no `params`."""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """An environment or agent of the run file that the simulation builds itself: `vector` of them for each worker;
    `wrappers` are built around an environment, the first one innermost; `state` is the file that an agent is loaded from.
    """

    entry: str
    params: dict[str, Any] = {}
    wrappers: tuple[Wrapper, ...] = ()
    vector: int = 1
    vector_mode: VectorMode = "sync"
    state: str | None = None


class StartSimulation(Message, frozen=True):
    """Play the episodes of a phase. `done` are the running figures of those that ended before this incarnation began:
    they count, and are not played again. `made_environment` and `made_agents` (in the order of `agents`) are set when
    `transport` is ``in_process`` or ``ray``. `players` maps players to agents, where the run file does. `chunk`: episodes
    that a runner gets at a time, None: as many as take about a second. `vector` is the number of environments of each
    worker; `max_staleness` is in versions of the weights. `build_seconds` bounds how long an environment or agent takes
    to be built here, not in a conductor of its own; `return_seconds`, how long a conductor may be unavailable. `info`: the
    reduction of each key over an episode, or ``all``; `reports`: names that rules may use. `failures`: None is no bound.
    `attempts`: the kinds of the failed attempts at episodes that have not ended. `cancelled` are not played: they end as that, with
    this reason.
    """

    phase: int
    name: str
    mode: Literal["train", "eval"]
    environment: str
    agents: tuple[str, ...]
    episodes: int
    workers: int
    max_steps: int | None
    episode_timeout: float | None
    seed: int
    until: tuple[Until, ...] = ()
    evaluate: Evaluate | None = None
    checkpoint: Checkpoint | None = None
    done: PhaseFigures = msgspec.field(default_factory=PhaseFigures)
    transport: Literal["conductors", "in_process", "ray"] = "conductors"
    made_environment: Made | None = None
    made_agents: tuple[Made, ...] = ()
    players: dict[str, str] = {}
    chunk: int | None = None
    vector: int = 1
    vector_mode: VectorMode = "sync"
    max_staleness: int = 0
    info: dict[str, str] | Literal["all"] = {}
    reports: tuple[str, ...] = ()
    failures: Failures | None = None
    attempts: dict[int, tuple[FailureKind, ...]] = {}
    cancelled: dict[int, str] = {}
    build_seconds: float = 60.0
    return_seconds: float = 60.0


class StartTasks(Message, frozen=True):
    """Run the task graph of a phase. `done` is what had ended of it before this incarnation began, as `EndedRuns.fold`
    gives it; the values of these runs lie in the journal, whose path is `journal`.

    `max_repeat_per_runner` runs of a task are executed by one runner in a row. Once `min_num` tasks have succeeded, or
    all but the part `over_rollout`, what is left has `wait_after_min` seconds. `grace` is seconds from the end of an
    attempt's time to its death. `failures`: None is no bound; of them `failed` have been, the last `failed_in_a_row` one after
    the other. `cancelled` tasks and runs of them (``fit[2]``) end as that, with this reason.
    """

    phase: int
    name: str
    tasks: tuple[TaskSpec, ...]
    seed: int
    done: dict[str, EndedRuns] = {}
    journal: str = ""
    max_repeat_per_runner: int | None = 1
    min_num: int | None = None
    over_rollout: float = 0.0
    wait_after_min: float = 0.0
    dynamic_timeout: DynamicTimeoutSpec | None = None
    failures: Failures | None = None
    failed: int = 0
    failed_in_a_row: int = 0
    grace: float = 1.0
    cancelled: dict[str, str] = {}


ConductorCommand: TypeAlias = (
    StartSimulation
    | StartTasks
    | PausePartCommand
    | ChangeWorkCommand
    | ChangeTasksCommand
    | StopPartCommand
    | Retire
    | Shutdown
    | Ping
)


def _section(kind: type[Section], data: object) -> Section:
    return kind.model_validate(data)


_command: msgspec.msgpack.Decoder[ConductorCommand] = msgspec.msgpack.Decoder(
    ConductorCommand, dec_hook=_section
)

decode_command = _command.decode
decode_simulation = msgspec.msgpack.Decoder(StartSimulation, dec_hook=_section).decode

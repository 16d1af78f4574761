"""Between daemon and conductors: commands to a conductor, and its reports."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from governor.messages.base import ConductorKind, Done, FlowControl, Message, Part, Refused, TaskOutcome
from governor.messages.results import EpisodeRecord, TaskRecord
from transport.access import Secret  # msgspec reads it at run time

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class ReadyReport(Message, frozen=True):
    """The conductor accepts commands. `detail` is for the log: spaces of an environment, Ray's address, and so on."""

    detail: dict[str, Any] = {}


class FailedReport(Message, frozen=True):
    """The conductor cannot work and will exit; `reason` is one line, `traceback` goes to the log."""

    reason: str
    traceback: str = ""


class EpisodeEnded(Message, frozen=True):
    phase: int
    episode: EpisodeRecord


class TaskStarted(Message, frozen=True):
    phase: int
    task: str
    run: int
    attempt: int
    pid: int
    node: str


class TaskEnded(Message, frozen=True):
    """The last attempt of one run of a task is over."""

    phase: int
    record: TaskRecord


class TaskAttemptEnded(Message, frozen=True):
    """An attempt ended badly and another one follows."""

    phase: int
    task: str
    run: int
    attempt: int
    outcome: TaskOutcome
    error: str
    seconds: float


class PartEndedReport(Message, frozen=True):
    """The simulation or the task graph of a phase is over. `end` is the reason: ``max_episodes``, ``until``,
    ``tasks_done``, ``stopped``; `failures` counts episodes or tasks that ended badly; `first_failure` is one
    line.
    """

    phase: int
    part: Part
    end: str
    failures: int = 0
    first_failure: str = ""
    metrics: dict[str, float] = {}


class Log(Message, frozen=True):
    """A line of a conductor for the run's log."""

    level: LogLevel
    event: str
    data: dict[str, Any] = {}


ConductorEvent: TypeAlias = (
    ReadyReport
    | FailedReport
    | EpisodeEnded
    | TaskStarted
    | TaskAttemptEnded
    | TaskEnded
    | PartEndedReport
    | Log
)


class Report(Message, frozen=True):
    """Events of a conductor, in order, sent again until acknowledged. `seq` is the number of the first one; each is
    applied once by (conductor, incarnation, number).
    """

    conductor: str
    incarnation: int
    seq: int
    events: tuple[ConductorEvent, ...]


class Acknowledged(Message, frozen=True):
    """The events are in the journal. `flow` is the governor's flow control for the end of an episode."""

    flow: FlowControl = "CONTINUE"


class Until(msgspec.Struct, frozen=True, kw_only=True):
    """One of: a bound for the mean of `metric`, `steps`, `wall_clock` (seconds)."""

    metric: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    average_over: int = 1
    steps: int | None = None
    wall_clock: float | None = None


class Plateau(msgspec.Struct, frozen=True, kw_only=True):
    patience: int
    min_delta: float = 0.0
    direction: Literal["max", "min"] = "max"
    window: int = 1


class Evaluate(msgspec.Struct, frozen=True, kw_only=True):
    """After `every` training episodes, `episodes` that neither explore nor learn."""

    every: int
    episodes: int
    metric: str = "return"
    at_least: float | None = None
    at_most: float | None = None
    consecutive: int = 1
    plateau: Plateau | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The states of the agents that are kept: the last `keep` of those saved after each `every` episodes, the best, the last."""

    every: int | None = None
    keep: int | None = None
    best: bool = False
    last: bool = False


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """An environment or agent of the run file that the simulation builds itself: `vector` of them for each worker;
    `state` is the file that an agent is loaded from.
    """

    entry: str
    params: dict[str, Any] = {}
    vector: int = 1
    state: str | None = None


class StartSimulation(Message, frozen=True):
    """Play the episodes of a phase. `done` are the episodes that ended before this incarnation began: they
    count, and are not played again. `made_environment` and `made_agents` (in the order of `agents`) are set when
    `transport` is ``in_process`` or ``ray``. `players` maps players to agents, where the run file does. `chunk`: episodes
    that a runner gets at a time, None: as many as take about a second. `vector` is the number of environments of each
    worker; `max_staleness` is in versions of the weights. `build_seconds` bounds how long an environment or agent takes
    to be built here, not in a conductor of its own.
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
    done: tuple[EpisodeRecord, ...] = ()
    transport: Literal["conductors", "in_process", "ray"] = "conductors"
    made_environment: Made | None = None
    made_agents: tuple[Made, ...] = ()
    players: dict[str, str] = {}
    chunk: int | None = None
    vector: int = 1
    max_staleness: int = 0
    build_seconds: float = 60.0


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node of the graph. `timeout` bounds the running time of one attempt; `retries` is the number of
    attempts after the first. `args_key` names arguments that are not plain data and are stored in Ray.
    """

    id: str
    call: str
    args: dict[str, Any] = {}
    depends_on: tuple[str, ...] = ()
    repeat: int = 1
    timeout: float | None = None
    retries: int = 0
    resources: dict[str, float] = {}
    is_eval: bool = False
    priority: int = 0
    args_key: str = ""


class DynamicTimeoutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """As `governor.tasks.DynamicTimeout`; steps are the train phases with these settings."""

    ratio: float = 3.0
    warmup_min_steps: int = 1
    percentile: float | None = None
    window: int = 256
    floor: float = 1.0


class StartTasks(Message, frozen=True):
    """Run the task graph of a phase. `done` are runs of tasks that ended before this incarnation began.

    `max_repeat_per_runner` runs of a task are executed by one runner in a row. Once `min_num` tasks have succeeded, or
    all but the part `over_rollout`, what is left has `wait_after_min` seconds. `grace` is seconds from the end of an
    attempt's time to its death.
    """

    phase: int
    name: str
    tasks: tuple[TaskSpec, ...]
    seed: int
    done: tuple[TaskRecord, ...] = ()
    max_repeat_per_runner: int | None = 1
    min_num: int | None = None
    over_rollout: float = 0.0
    wait_after_min: float = 0.0
    dynamic_timeout: DynamicTimeoutSpec | None = None
    grace: float = 1.0


class StopPartCommand(Message, frozen=True):
    """End what is running of this phase; the end comes as `PartEndedReport` with end ``stopped``."""

    phase: int
    reason: str


class Shutdown(Message, frozen=True):
    """Close and exit with 0 within `grace` seconds."""

    grace: float


class Ping(Message, frozen=True):
    """Liveness probe. The conductor's event loop answers it with `Alive`."""


class Alive(Message, frozen=True):
    """Answer to `Ping`. `progress` counts steps played, tasks begun and ended."""

    progress: int = 0


ConductorCommand: TypeAlias = StartSimulation | StartTasks | StopPartCommand | Shutdown | Ping


class ConductorSpec(Message, frozen=True):
    """All that a conductor needs when it starts.

    `run_folder` keeps files of the run (``runs/<uid>/``), `socket_folder` its sockets; `import_folder` goes to
    the front of ``sys.path``. `secret` is the run's: it goes with each report, as a frame of its own, and comes with each
    command. `settings` is the conductor's own section of the run file.
    """

    uid: str
    run_name: str
    name: str
    kind: ConductorKind
    incarnation: int
    client_endpoint: str
    worker_endpoint: str
    secret: Secret
    run_folder: str
    socket_folder: str
    import_folder: str
    seed: int
    settings: dict[str, Any] = {}
    log_format: Literal["console", "json"] = "json"
    log_level: str = "info"


_spec = msgspec.msgpack.Decoder(ConductorSpec)

_report = msgspec.msgpack.Decoder(Report)

_acknowledged: msgspec.msgpack.Decoder[Acknowledged | Refused] = msgspec.msgpack.Decoder(
    Acknowledged | Refused
)
_command: msgspec.msgpack.Decoder[ConductorCommand] = msgspec.msgpack.Decoder(ConductorCommand)
_command_reply: msgspec.msgpack.Decoder[Done | Refused | Alive] = msgspec.msgpack.Decoder(
    Done | Refused | Alive
)

decode_spec = _spec.decode
decode_report = _report.decode
decode_acknowledged = _acknowledged.decode
decode_command = _command.decode
decode_command_reply = _command_reply.decode

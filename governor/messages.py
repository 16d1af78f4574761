"""What is said between executor, daemon and conductors: msgspec Structs in msgpack, tagged by type.

Rules:
1. Nothing here is ever unpickled. A frame decodes into one of the types of its union, or it is a bad request.
2. Durations are in seconds, ``at`` is wall-clock time (seconds since the epoch) for records only.
3. A type lives in one union: what an executor may ask, what the daemon answers, what a conductor reports,
   what a conductor is told. `decode_*` is the only way in.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

ConductorKind: TypeAlias = Literal["environment", "agent", "simulation", "task"]
RunOutcome: TypeAlias = Literal["finished", "failed", "aborted"]
TaskOutcome: TypeAlias = Literal[
    "succeeded", "failed", "timed_out", "crashed", "upstream_failed", "cancelled"
]
EpisodeOutcome: TypeAlias = Literal["terminated", "truncated", "failed", "timed_out", "crashed", "cancelled"]
Part: TypeAlias = Literal["simulation", "tasks"]
FlowControl: TypeAlias = Literal[
    "CONTINUE", "PAUSE", "RESET", "RESTART", "STOP_SIMULATION", "STOP_PHASE", "SHUTDOWN"
]

SERVICE: Final = "governor"


def run_service(uid: str) -> str:
    """Where the conductors of run `uid` report their events."""
    return f"run.{uid}"


def conductor_service(uid: str, name: str) -> str:
    """Where the conductor `name` of run `uid` takes its commands."""
    return f"conductor.{uid}.{name}"


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """Root of everything that travels."""


# -- executor -> daemon -------------------------------------------------------------------------------------


class Submit(Message, frozen=True):
    """A run file as parsed YAML, the folder its `entry` and `call` are imported from, the client's key."""

    run: dict[str, Any]
    folder: str
    key: str | None = None


class Watch(Message, frozen=True):
    """All events of the run with a sequence number above `after`, and those to come until it has ended."""

    uid: str
    after: int = 0


class Status(Message, frozen=True):
    uid: str | None = None


class ListRuns(Message, frozen=True):
    limit: int = 100


class Abort(Message, frozen=True):
    uid: str
    reason: str = ""


class Results(Message, frozen=True):
    uid: str


# -- daemon -> executor -------------------------------------------------------------------------------------


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a run file. `path` is like ``phases[1].tasks[0].timeout``; `line` counts from 1."""

    path: str
    message: str
    line: int | None = None


class Refused(Message, frozen=True):
    """The answer to a command that changed nothing. `exit_code` is what the command line ends with."""

    code: str
    message: str
    exit_code: int
    faults: tuple[Fault, ...] = ()


class Submitted(Message, frozen=True):
    """The run is in the journal. `known` is true when the client's key had been submitted before."""

    uid: str
    known: bool = False


class Done(Message, frozen=True):
    """The command was taken; its end is an event of the run."""


class RunEvent(Message, frozen=True):
    """One line of a run's record. `seq` counts from 1 for each run, without gaps."""

    uid: str
    seq: int
    at: float
    kind: str
    data: dict[str, Any] = {}


class WatchEnd(Message, frozen=True):
    """Nothing more will come: the run has ended, or (`interrupted`) the daemon is going down."""

    outcome: RunOutcome | Literal["interrupted"]


class ConductorStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ConductorKind
    state: str
    pid: int | None
    incarnation: int


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `status` and `list` show it. `waits_for` answers "why is it waiting?" in one line."""

    uid: str
    name: str
    state: str
    outcome: RunOutcome | None
    reason: str
    waits_for: str
    submitted_at: float
    started_at: float | None = None
    ended_at: float | None = None
    phase: str | None = None
    phase_index: int | None = None
    phases: int = 0
    episodes_ended: int = 0
    episodes_total: int = 0
    tasks_ended: int = 0
    tasks_total: int = 0
    metrics: dict[str, float] = {}
    conductors: tuple[ConductorStatus, ...] = ()


class StatusReport(Message, frozen=True):
    """The daemon and its runs in work or queued; with a uid, that run alone, ended ones too."""

    pid: int
    version: str
    endpoint: str
    uptime: float
    slots: int
    state: str
    runs: tuple[RunStatus, ...]
    ray: str = "not started"


class RunList(Message, frozen=True):
    runs: tuple[RunStatus, ...]


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of a task ended. `value` is set when it is small and JSON-like, else `value_file` names a
    file below the run's folder. `cause` names the root task of an `upstream_failed`. `seconds` is the running
    time of the last attempt.
    """

    task: str
    run: int
    outcome: TaskOutcome
    attempts: int
    seconds: float
    value: Any = None
    value_file: str | None = None
    metrics: dict[str, float] = {}
    error: str = ""
    cause: str | None = None


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one episode ended. `index` counts from 0 within its phase; `value` is the undiscounted return."""

    index: int
    worker: int
    seed: int
    outcome: EpisodeOutcome
    value: float
    steps: int
    seconds: float
    reason: str = ""


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    mode: str
    end: str
    episodes: dict[str, int] = {}
    metrics: dict[str, float] = {}
    tasks: tuple[TaskRecord, ...] = ()


class RunResult(Message, frozen=True):
    uid: str
    name: str
    outcome: RunOutcome
    reason: str
    submitted_at: float
    started_at: float | None
    ended_at: float
    phases: tuple[PhaseResult, ...]
    folder: str


ExecutorRequest: TypeAlias = Submit | Watch | Status | ListRuns | Abort | Results
ExecutorReply: TypeAlias = (
    Refused | Submitted | Done | RunEvent | WatchEnd | StatusReport | RunList | RunResult
)


# -- conductor -> daemon ------------------------------------------------------------------------------------


class ConductorReady(Message, frozen=True):
    """It can take commands. `detail` is for the log: spaces of an environment, Ray's address, and so on."""

    detail: dict[str, Any] = {}


class ConductorFailed(Message, frozen=True):
    """It cannot work and will exit; `reason` is one line, `traceback` goes to the log."""

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


class PartEnded(Message, frozen=True):
    """The simulation or the task graph of a phase is over. `end` says why: ``max_episodes``, ``until``,
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

    level: str
    event: str
    data: dict[str, Any] = {}


ConductorEvent: TypeAlias = (
    ConductorReady
    | ConductorFailed
    | EpisodeEnded
    | TaskStarted
    | TaskAttemptEnded
    | TaskEnded
    | PartEnded
    | Log
)


class Report(Message, frozen=True):
    """Events of a conductor on their way, in order: kept and sent again until acknowledged. `seq` is the number
    of the first one; each is applied once by (conductor, incarnation, number).
    """

    conductor: str
    incarnation: int
    seq: int
    events: tuple[ConductorEvent, ...]


class Acknowledged(Message, frozen=True):
    """The events are in the journal. `flow` is the governor's flow control for the end of an episode."""

    flow: FlowControl = "CONTINUE"


# -- daemon -> conductor ------------------------------------------------------------------------------------


class Until(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    at_least: float
    average_over: int = 1


class StartSimulation(Message, frozen=True):
    """Drive the episodes of a phase. `done` are the episodes that ended before this incarnation began: they
    count, and are not played again.
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
    done: tuple[EpisodeRecord, ...] = ()


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the graph. `timeout` bounds the running time of one attempt; `retries` is the number of
    attempts after the first.
    """

    id: str
    call: str
    args: dict[str, Any] = {}
    depends_on: tuple[str, ...] = ()
    repeat: int = 1
    timeout: float | None = None
    retries: int = 0
    resources: dict[str, float] = {}


class StartTasks(Message, frozen=True):
    """Run the task graph of a phase. `done` are runs of tasks that ended before this incarnation began."""

    phase: int
    name: str
    tasks: tuple[TaskSpec, ...]
    seed: int
    done: tuple[TaskRecord, ...] = ()


class StopPart(Message, frozen=True):
    """End what is running of this phase; the end comes as `PartEnded` with end ``stopped``."""

    phase: int
    reason: str


class Shutdown(Message, frozen=True):
    """Close and exit with 0 within `grace` seconds."""

    grace: float


ConductorCommand: TypeAlias = StartSimulation | StartTasks | StopPart | Shutdown


class ConductorSpec(Message, frozen=True):
    """All that a conductor needs to know at its birth.

    `run_folder` keeps files of the run (``runs/<uid>/``), `socket_folder` its sockets; `import_folder` goes to
    the front of ``sys.path``. `settings` is the conductor's own section of the run file.
    """

    uid: str
    run_name: str
    name: str
    kind: ConductorKind
    incarnation: int
    client_endpoint: str
    worker_endpoint: str
    run_folder: str
    socket_folder: str
    import_folder: str
    seed: int
    settings: dict[str, Any] = {}
    log_format: Literal["console", "json"] = "json"
    log_level: str = "info"


_encoder = msgspec.msgpack.Encoder()
_spec = msgspec.msgpack.Decoder(ConductorSpec)
_request: msgspec.msgpack.Decoder[ExecutorRequest] = msgspec.msgpack.Decoder(ExecutorRequest)
_reply: msgspec.msgpack.Decoder[ExecutorReply] = msgspec.msgpack.Decoder(ExecutorReply)
_report = msgspec.msgpack.Decoder(Report)
_acknowledged: msgspec.msgpack.Decoder[Acknowledged | Refused] = msgspec.msgpack.Decoder(
    Acknowledged | Refused
)
_command: msgspec.msgpack.Decoder[ConductorCommand] = msgspec.msgpack.Decoder(ConductorCommand)
_command_reply: msgspec.msgpack.Decoder[Done | Refused] = msgspec.msgpack.Decoder(Done | Refused)

encode = _encoder.encode
decode_spec = _spec.decode
decode_request = _request.decode
decode_reply = _reply.decode
decode_report = _report.decode
decode_acknowledged = _acknowledged.decode
decode_command = _command.decode
decode_command_reply = _command_reply.decode

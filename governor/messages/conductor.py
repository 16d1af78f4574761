"""Between daemon and conductors: what a conductor is, and its reports and answers."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from governor.messages.base import (
    ConductorKind,
    Done,
    EpisodeOutcome,
    FlowControl,
    Message,
    Part,
    Refused,
    TaskOutcome,
    WorkChange,
)
from governor.messages.results import EpisodeRecord, TaskRecord
from transport.access import Secret  # msgspec reads it at run time

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class ReadyReport(Message, frozen=True):
    """The conductor accepts commands. `detail` is for the log: spaces of an environment, Ray's address, and so on."""

    detail: dict[str, Any] = {}


class FailedReport(Message, frozen=True):
    """The conductor cannot work and will exit; `reason` is one line, `traceback` that of user code."""

    reason: str
    traceback: str = ""


class TracebackSeen(Message, frozen=True):
    """The text of a traceback; records that are reported after it have the digest alone. `first`: that of a cause."""

    digest: str
    text: str
    first: bool = False


class EpisodeEnded(Message, frozen=True):
    phase: int
    episode: EpisodeRecord


class EpisodeAttemptEnded(Message, frozen=True):
    """An attempt at an episode failed, and another one follows. `lost`: with its process, which `failures.retry` does not count."""

    phase: int
    index: int
    attempt: int
    worker: int
    outcome: EpisodeOutcome
    reason: str
    steps: int
    seconds: float
    traceback: str = ""
    lost: bool = False


class FiguresUpdated(Message, frozen=True):
    """The running figures of a phase, `PhaseFigures` in msgpack: of all its episodes that have been reported before."""

    phase: int
    figures: bytes


class AgentRestored(Message, frozen=True):
    """An agent goes on with a phase after a process has died. `reason`: why it is not where it would be without that, or "": so many
    `episodes` with `steps` were learned again from the record.
    """

    phase: int
    agent: str
    reason: str = ""
    episodes: int = 0
    steps: int = 0


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
    traceback: str = ""


class ReportedSums(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was reported of one metric: number, mean, minimum, maximum and last of the finite values, and how many were not. `before`:
    how many values that run of the task had reported before; `seconds`: from its first report to the last of these.
    """

    count: int
    mean: float
    low: float
    high: float
    last: float
    others: int = 0
    before: int = 0
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many values there were until now."""
        return self.before + self.count + self.others

    @property
    def points(self) -> list[tuple[float, int]]:
        """Finite values of this mean, minimum and maximum, and how many of each."""
        low, high, between = self.low + 0.0, self.high + 0.0, self.count - 2
        ends = [(low, 1), (high, 1)][: self.count]
        if between <= 0:
            return ends
        inner = (self.mean - low / self.count - high / self.count) * (self.count / between)
        return [*ends, (min(max(inner, low), high), between)]


class TaskReported(Message, frozen=True):
    """What a task has reported, by name, since the event before."""

    phase: int
    task: str
    run: int
    attempt: int
    values: dict[str, ReportedSums]


class FlowReport(Message, frozen=True):
    """A condition of the phase has answered with this flow control; `reason` names it, and the episode."""

    phase: int
    flow: FlowControl
    reason: str


class PartEndedReport(Message, frozen=True):
    """The simulation or the task graph of a phase is over. `end` is the reason: ``max_episodes``, ``until``,
    ``tasks_done``, ``failures``, ``stopped``; `ended_by` names the condition behind ``until``. `failures` counts episodes or tasks that ended
    badly; `first_failure` is one line. `fault` is a failure of the part itself, with its `traceback`. `exceeded` names the bound
    of `failures` that was passed; `tolerated`: none was, and there are failures of episodes or tasks alone.
    """

    phase: int
    part: Part
    end: str
    ended_by: str = ""
    failures: int = 0
    first_failure: str = ""
    metrics: dict[str, float] = {}
    fault: str = ""
    traceback: str = ""
    exceeded: str = ""
    tolerated: bool = False


class PartFinalizing(Message, frozen=True):
    """All episodes of a part have ended, and `steps` of the `total` found so far are in their file by now."""

    phase: int
    part: Part
    steps: int
    total: int


def finalizing(steps: int, total: int) -> str:
    """As it is shown to people."""
    return f"{steps:,} of {total:,} steps are in it"


class Log(Message, frozen=True):
    """A line of a conductor for the run's log."""

    level: LogLevel
    event: str
    data: dict[str, Any] = {}


ConductorEvent: TypeAlias = (
    ReadyReport
    | FailedReport
    | TracebackSeen
    | EpisodeEnded
    | EpisodeAttemptEnded
    | FiguresUpdated
    | AgentRestored
    | TaskStarted
    | TaskAttemptEnded
    | TaskReported
    | TaskEnded
    | PartFinalizing
    | FlowReport
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


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node of the graph. `timeout` bounds the running time of one attempt; `retries` is the number of
    attempts after the first; `retry` says it by the kind of failure, where it is not empty. `args_key` names arguments that are not plain data and are stored in Ray.
    """

    id: str
    call: str
    args: dict[str, Any] = {}
    depends_on: tuple[str, ...] = ()
    repeat: int = 1
    timeout: float | None = None
    retries: int = 0
    retry: dict[str, int] = {}
    resources: dict[str, float] = {}
    is_eval: bool = False
    priority: int = 0
    args_key: str = ""


class StopPartCommand(Message, frozen=True):
    """End what is running of this phase; the end comes as `PartEndedReport` with end ``stopped``."""

    phase: int
    reason: str


class PausePartCommand(Message, frozen=True):
    """Begin no further episode or task of this phase, or, without `paused`, go on. What runs is not touched. `ends_flow`: what a condition
    has paused goes on, too.
    """

    phase: int
    paused: bool
    ends_flow: bool = False


class ChangeWorkCommand(Message, frozen=True):
    """Cancel an `episode` or a `task` of this phase, or a run of it (``fit[2]``), or end what runs of it and do it again. What has ended
    stays so.
    """

    phase: int
    change: WorkChange
    episode: int | None
    task: str
    reason: str


class ChangeTasksCommand(Message, frozen=True):
    """Other time-outs and retries of tasks of this phase: they are those of these `tasks`."""

    phase: int
    tasks: tuple[TaskSpec, ...]


class Retire(Message, frozen=True):
    """Begin no further episode, and exit with 0 once those that are played have ended and are on record."""


class Shutdown(Message, frozen=True):
    """Close and exit with 0 within `grace` seconds."""

    grace: float


class Ping(Message, frozen=True):
    """Liveness probe. The conductor's event loop answers it with `Alive`."""


class Alive(Message, frozen=True):
    """Answer to `Ping`. `progress` counts steps played, tasks begun and ended."""

    progress: int = 0


class ConductorSpec(Message, frozen=True):
    """All that a conductor needs when it starts.

    `run_folder` keeps files of the run (``runs/<uid>/``), `socket_folder` its sockets; `import_folder` goes to
    the front of ``sys.path``, and is the working directory; `variables` go to the environment of its process, and of those below. `secret` is the run's: it goes with each report, as a frame of its own, and comes with each
    command. `settings` is the conductor's own section of the run file.
    """

    uid: str
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
    variables: dict[str, str] = {}
    log_format: Literal["console", "json", "journal"] = "json"
    log_level: str = "info"


_acknowledged: msgspec.msgpack.Decoder[Acknowledged | Refused] = msgspec.msgpack.Decoder(
    Acknowledged | Refused
)
_command_reply: msgspec.msgpack.Decoder[Done | Refused | Alive] = msgspec.msgpack.Decoder(
    Done | Refused | Alive
)

decode_spec = msgspec.msgpack.Decoder(ConductorSpec).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_acknowledged = _acknowledged.decode
decode_command_reply = _command_reply.decode

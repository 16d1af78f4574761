"""Between executor and daemon: the requests to the service `governor`, and its replies."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from governor.messages.base import Done, FailureKind, Message, Refused, RunOutcome, WorkChange
from governor.messages.curves import Curve
from governor.messages.files import FileList, FilePiece, ListFiles, PackageStored, ReadFile, StorePackage
from governor.messages.groups import (
    ChangeGroup,
    GetGroup,
    GroupChanged,
    GroupProgress,
    GroupReport,
    SubmitGroup,
    SubmittedGroup,
    WatchGroup,
)
from governor.messages.output import OutputPage, ReadOutput
from governor.messages.results import RunResult
from governor.messages.status import Explanation, RunList, StatusReport


class Submit(Message, frozen=True):
    """Submits a run: its run file as parsed YAML, the folder to import its `entry` and `call` from, the client's key. `params`: values that
    options of the client have put into it, by their paths.
    """

    run: dict[str, Any]
    folder: str
    key: str | None = None
    params: dict[str, Any] = {}


class Resume(Message, frozen=True):
    """A new run that keeps what the run `uid`, which has ended, has finished. Answered as `Submit`."""

    uid: str
    key: str | None = None


class Watch(Message, frozen=True):
    """All events of the run with a sequence number above `after`, of these `kinds` if any are given; with `follow` also later ones, until
    the run has ended.
    """

    uid: str
    after: int = 0
    follow: bool = True
    kinds: tuple[str, ...] = ()


class GetStatus(Message, frozen=True):
    uid: str | None = None


class ListRuns(Message, frozen=True):
    """The newest runs; with `after` those that were submitted before that run. Only those of the `group`, with the `labels`, in the `state`
    (or with that outcome). `sort`: by a metric, a path of a matrix or its end, or ``seconds``, ``name``, ``submitted``; the lowest first.
    """

    limit: int = 100
    after: str | None = None
    group: str | None = None
    labels: dict[str, str] = {}
    state: str | None = None
    sort: str | None = None
    descending: bool = False


class Abort(Message, frozen=True):
    uid: str
    reason: str = ""


class Pause(Message, frozen=True):
    """No further episode or task of the run begins, until `Continue`. `hard`: what runs is interrupted too, and done again then.
    `dry_run`: changes nothing. Answered with `Changed`.
    """

    uid: str
    reason: str = ""
    hard: bool = False
    dry_run: bool = False


class Continue(Message, frozen=True):
    """Ends a pause of the run, also one that a condition has asked for. Answered with `Changed`."""

    uid: str
    reason: str = ""
    dry_run: bool = False


class ChangeWork(Message, frozen=True):
    """An `episode` or a `task` of the phase at work, which may be named, is to end as cancelled, or what runs of it to be done again.
    `task` may be one run of it, as ``fit[2]``. Answered with `Changed`.
    """

    uid: str
    change: WorkChange
    phase: str | None = None
    episode: int | None = None
    task: str | None = None
    reason: str = ""
    dry_run: bool = False


class ChangeRun(Message, frozen=True):
    """Other `values` of keys of the run file, by their paths with dots. Answered with `RunChanged`."""

    uid: str
    values: dict[str, Any]
    reason: str = ""
    dry_run: bool = False


class Drain(Message, frozen=True):
    """No queued run begins any more, also after a restart of the daemon, until `Undrain`. Answered with `Changed`."""

    reason: str = ""
    dry_run: bool = False


class Undrain(Message, frozen=True):
    """Ends a drain, and takes back a `ShutdownDaemon` when idle. Answered with `Changed`."""

    reason: str = ""
    dry_run: bool = False


class ShutdownDaemon(Message, frozen=True):
    """Ends the daemon: its runs are interrupted, and go on at its next start. `when_idle`: no queued run begins any more, and it ends
    once no run is in work. Answered with `Changed`.
    """

    reason: str = ""
    when_idle: bool = False
    dry_run: bool = False


class Changed(Message, frozen=True):
    """The answer to a command about the run `uid`, or, without one, about the daemon. `changed`: something is different now, or would be
    with `dry_run`; False: it was so already. `state` of the run or the daemon, before.
    """

    uid: str
    changed: bool
    state: str
    dry_run: bool = False


class ValueChange(Message, frozen=True):
    """A key of the run file, spelled as in its faults, with its value `before` and `after`. `since`: from when on the new one counts."""

    key: str
    before: Any
    after: Any
    since: str = ""


class RunChanged(Changed, frozen=True):
    """As `Changed`, with the values that differ."""

    values: tuple[ValueChange, ...] = ()


class Results(Message, frozen=True):
    """Answered with the parts of a `RunResult`, then `Done`. `so_far`: also of a run that has not ended."""

    uid: str
    so_far: bool = False


class ListFailures(Message, frozen=True):
    """The failures of a run or `phase`, by their events, above number `after`. Answered with parts of a `FailureList`, then `Done`."""

    uid: str
    phase: str | None = None
    after: int = 0
    limit: int = 20


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`event` is its number in the run's record; `what` has failed: "episode 3", "task fit[0]", "attempt 1 of task fit[0]",
    "conductor agent.walker", "simulation". `traceback` is a key of `FailureList.tracebacks`; "": there is none.
    `failure_kind` is of episodes, tasks and their attempts.
    """

    event: int
    at: float
    what: str
    outcome: str
    reason: str
    phase: str | None = None
    traceback: str = ""
    failure_kind: FailureKind | None = None


class FailureList(Message, frozen=True):
    """`tracebacks` by the keys that the failures have; a key without a text: that traceback was not kept. `more`: there are later
    ones, to be listed `after` the last of these.
    """

    uid: str
    failures: tuple[Failure, ...]
    tracebacks: dict[str, str] = {}
    more: bool = False


class GetCurves(Message, frozen=True):
    """The curves of a metric in the phases of a run, or in this one. Answered with the parts of `RunCurves`, then `Done`."""

    uid: str
    metric: str
    phase: str | None = None


class Explain(Message, frozen=True):
    uid: str


class Prune(Message, frozen=True):
    """Removes ended runs, except the newest `keep_runs` and those that ended within the last `keep_days`; with neither, by the
    daemon's configuration. `dry_run` only lists them.
    """

    keep_runs: int | None = None
    keep_days: float | None = None
    dry_run: bool = False


class Pruned(Message, frozen=True):
    """The pruned runs, and the bytes of their files. `removed`: these are removed already; else the daemon is removing them."""

    uids: tuple[str, ...]
    bytes: int
    dry_run: bool = False
    removed: bool = False


class Reload(Message, frozen=True):
    """Reads the daemon's configuration again and applies it, all or nothing."""


class Reloaded(Message, frozen=True):
    """The configuration is in force. `changed` are the keys whose values are new."""

    changed: tuple[str, ...] = ()


class Stop(Message, frozen=True):
    """Aborts the runs of a RunGovernor that was built by itself, and ends it. A daemon refuses."""

    reason: str = ""


class Submitted(Message, frozen=True):
    """The run is in the journal. `known` is true when the client's key had been submitted before."""

    uid: str
    known: bool = False


class RunEvent(Message, frozen=True):
    """One line of a run's record. `seq` counts from 1 for each run, without gaps."""

    uid: str
    seq: int
    at: float
    kind: str
    data: dict[str, Any] = {}


class WatchEnd(Message, frozen=True):
    """The last message: the run has ended, the daemon is going down (`interrupted`), or the request had no `follow`."""

    outcome: RunOutcome | Literal["interrupted", "in work"]


class PhaseCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Of a phase that began: the `metrics` that have a curve, and the curve of the one asked for, if it has one."""

    phase: str
    mode: str
    metrics: tuple[str, ...] = ()
    curve: Curve | None = None


class RunCurves(Message, frozen=True):
    """A metric of a run, by phase. `ended`: the run has ended."""

    uid: str
    name: str
    metric: str
    ended: bool
    phases: tuple[PhaseCurve, ...]


ExecutorRequest: TypeAlias = (
    Submit
    | SubmitGroup
    | ChangeGroup
    | GetGroup
    | WatchGroup
    | Resume
    | Watch
    | GetStatus
    | ListRuns
    | Abort
    | Pause
    | Continue
    | ChangeWork
    | ChangeRun
    | Drain
    | Undrain
    | ShutdownDaemon
    | Results
    | GetCurves
    | ListFailures
    | Explain
    | ReadOutput
    | ListFiles
    | ReadFile
    | StorePackage
    | Prune
    | Reload
    | Stop
)

ExecutorReply: TypeAlias = (
    Refused
    | Submitted
    | SubmittedGroup
    | Changed
    | RunChanged
    | GroupChanged
    | GroupReport
    | GroupProgress
    | Done
    | RunEvent
    | WatchEnd
    | StatusReport
    | RunList
    | RunResult
    | FileList
    | FilePiece
    | PackageStored
    | RunCurves
    | FailureList
    | Explanation
    | OutputPage
    | Pruned
    | Reloaded
)

_request: msgspec.msgpack.Decoder[ExecutorRequest] = msgspec.msgpack.Decoder(ExecutorRequest)
_reply: msgspec.msgpack.Decoder[ExecutorReply] = msgspec.msgpack.Decoder(ExecutorReply)

decode_request = _request.decode
decode_reply = _reply.decode

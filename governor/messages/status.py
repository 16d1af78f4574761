"""How the daemon and its runs are now: the answers to `status`, `list` and `explain`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from governor.messages.base import ConductorKind, Message, RunOutcome


class ConductorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`started`: the pids of all processes below it, with runners of Ray on this machine. `cpu`: CPUs that these keep busy, since
    the status before (the first time, since it began); `memory` in bytes, as of `limits.memory`: both of one run alone.
    """

    name: str
    kind: ConductorKind
    state: str
    pid: int | None
    incarnation: int
    started: tuple[int, ...] = ()
    cpu: float | None = None
    memory: int | None = None


class TimeLeft(msgspec.Struct, frozen=True, kw_only=True):
    """About how many seconds the phase and the whole run still take; None: not known. `at_most`: a condition on a metric may
    end a phase earlier.
    """

    phase: float
    run: float | None = None
    at_most: bool = False


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the run file, and its use; None: not measured yet. Memory and disk in bytes."""

    limit: Literal["steps", "episodes", "tasks", "memory", "disk"]
    allowed: int
    used: int | None = None


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run as `status` and `list` show it. `group`, `params` (its values of the matrix) and `labels` are what it is found by. `waits_for`: why it is waiting, in one line; `parent` is the run that it
    resumes; `limits` and `left` are set while it is in work. `stalled_since`: the time of its last progress, if that is longer ago than
    its `stall_timeout`. `paused` by a user. `episodes_failed`, `tasks_failed`: of the current phase. `seconds` in work and `submitted_by` as of `RunResult`.
    """

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
    episodes_failed: int = 0
    tasks_failed: int = 0
    metrics: dict[str, float] = {}
    conductors: tuple[ConductorStatus, ...] = ()
    parent: str | None = None
    stalled_since: float | None = None
    paused: bool = False
    limits: tuple[LimitUse, ...] = ()
    seconds: float | None = None
    left: TimeLeft | None = None
    submitted_by: dict[str, Any] = {}
    group: str | None = None
    params: dict[str, Any] = {}
    labels: dict[str, str] = {}


class ExplainedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One activity or wait of a run; since when, and until when at most where it is bounded (wall-clock seconds)."""

    what: str
    since: float | None = None
    until: float | None = None


class Explanation(Message, frozen=True):
    """`at` is the daemon's current wall-clock time."""

    uid: str
    name: str
    at: float
    lines: tuple[ExplainedLine, ...]


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that have not ended. `held` wait for a process of an earlier daemon to exit, `damaged` for an abort."""

    in_work: int
    queued: int
    held: int
    damaged: int


class LoopTime(msgspec.Struct, frozen=True, kw_only=True):
    """Of the daemon's event loop since it was ready, in seconds: how long it was busy in all, and how long at a stretch at
    most, when everything else had to wait.
    """

    busy: float
    longest: float


class StatusReport(Message, frozen=True):
    """The daemon and its runs in work or queued, the first 100 of the latter; with a uid, that run alone, also an ended one.
    `quarantined`: slots that accept no run, and what each waits for. `counts` are of all runs; None: an older daemon. `loop`
    is None where the daemon shares the loop, as in `governor run`.
    """

    pid: int
    version: str
    endpoint: str
    uptime: float
    slots: int
    state: str
    runs: tuple[RunStatus, ...]
    ray: str = "not started"
    quarantined: dict[str, str] = {}
    counts: RunCounts | None = None
    loop: LoopTime | None = None


class RunList(Message, frozen=True):
    """Runs, newest first. `more`: older ones are listed `after` the last of these; None: an older daemon, which knows no `after`."""

    runs: tuple[RunStatus, ...]
    more: bool | None = None

"""What is kept of episodes, tasks, phases and runs: it travels, and it lies in the journal."""

from __future__ import annotations

from typing import Any

import msgspec

from governor.messages.base import EpisodeOutcome, Message, RunOutcome, TaskOutcome


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one episode ended. `index` counts from 0 within its phase; `value` is the undiscounted return: with several
    players the sum of theirs, which are `values`. `evaluation` is the number of the evaluation, from 1, that it belongs to, 0
    for none: such episodes are numbered on behind the last one of the phase.
    """

    index: int
    worker: int
    seed: int
    outcome: EpisodeOutcome
    value: float
    steps: int
    seconds: float
    reason: str = ""
    values: dict[str, float] = {}
    evaluation: int = 0


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    mode: str
    end: str
    episodes: dict[str, int] = {}
    metrics: dict[str, float] = {}
    tasks: tuple[TaskRecord, ...] = ()


class RunResult(Message, frozen=True):
    """How a run ended. `parent` is the run that this one resumed. `seconds` in work, of all invocations of the daemon: by the
    monotonic clock, so a clock that is set changes nothing; None in a record of before.
    """

    uid: str
    name: str
    outcome: RunOutcome
    reason: str
    submitted_at: float
    started_at: float | None
    ended_at: float
    phases: tuple[PhaseResult, ...]
    folder: str
    parent: str | None = None
    seconds: float | None = None

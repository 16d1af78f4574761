"""Records of episodes, tasks, phases and runs: sent in messages, and stored in the journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from governor.index_ranges import IndexRanges  # msgspec reads the annotation
from governor.messages.base import EpisodeOutcome, FailureKind, Message, RunOutcome, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of one run of a task. `value` is set when it is small and JSON-like, else `value_file` names a
    file below the run's folder. `cause` names the root task of an `upstream_failed`. `seconds` is the running
    time of the last attempt. `traceback` of the error; on record it is the digest of one that is stored once for the run.
    """

    task: str
    run: int
    outcome: TaskOutcome
    attempts: int = 0
    seconds: float = 0.0
    value: Any = None
    value_file: str | None = None
    metrics: dict[str, float] = {}
    error: str = ""
    cause: str | None = None
    traceback: str = ""


class EndedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What of a task has ended: these `runs`. `failures` of them did not succeed, those that failed with another task aside; `failure` is the record of the
    first one that did not succeed.
    """

    runs: IndexRanges
    failures: int = 0
    failure: TaskRecord | None = None

    @classmethod
    def fold(cls, records: Iterable[TaskRecord]) -> dict[str, EndedRuns]:
        """By task; tasks that failed come first, in the order of their first failures. Takes a run of a task once."""
        runs: defaultdict[str, IndexRanges] = defaultdict(IndexRanges)
        failures: Counter[str] = Counter()
        first: dict[str, TaskRecord] = {}
        for record in records:
            if runs[record.task].add(record.run) and record.outcome != "succeeded":
                failures[record.task] += record.outcome != "upstream_failed"
                first.setdefault(record.task, record)
        return {
            task: cls(runs=runs[task], failures=failures[task], failure=first.get(task))
            for task in [*first, *(task for task in runs if task not in first)]
        }


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of one episode. `index` counts from 0 within its phase; `value` is the undiscounted return: with several
    players the sum of theirs, which are in `values`. `evaluation` is the number of its evaluation, from 1, or 0 for none;
    the indices of evaluation episodes follow the last one of the phase. `metrics` are finite numbers of the user's code, by name:
    figures of `info`, and means of what was reported. `traceback` as of a task.
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
    metrics: dict[str, float] = {}
    traceback: str = ""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of a phase with one cause: the type and the place of an exception, and its text without numbers. `kind`: what has
    failed, an ``episode``, a ``task``, the ``attempt`` at one that was repeated, or a ``conductor``. `number` of them; `first` is named as
    "episode 3", `reason` and `event` (its number in the run's record) are its own. `others`: causes that were too many.
    `failure_kind`: None of a part of the phase, and of conductors.
    """

    kind: str
    number: int
    outcome: str
    reason: str
    first: str
    event: int
    others: bool = False
    failure_kind: FailureKind | None = None


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that began. `end`: why it ended, `ended_by`: by which condition; `episodes` and `task_outcomes`: how many episodes and task runs have ended with
    each outcome; `metrics` as `return_mean`. If there are too many task runs for `tasks`, it is empty and `tasks_file`, below
    the run's folder, has a line of JSON for each. `failures`: its causes, the most frequent ones first; `failed` is the number
    of all; `first_failure` is one line. `exact`: whether its agents are where they would be if no process had died meanwhile; None if none
    has. `not_exact`: why they are not.
    """

    name: str
    mode: str
    end: str
    ended_by: str = ""
    episodes: dict[str, int] = {}
    metrics: dict[str, float] = {}
    tasks: tuple[TaskRecord, ...] = ()
    task_outcomes: dict[str, int] = {}
    tasks_file: str | None = None
    failures: tuple[FailureGroup, ...] = ()
    failed: int = 0
    first_failure: str = ""
    exact: bool | None = None
    not_exact: str = ""


class RunResult(Message, frozen=True):
    """The end of a run. `parent` is the run that this one resumed. `seconds` in work, over all invocations of the daemon, by
    the monotonic clock, so changing the clock does not affect it; None in older records. `submitted_by`: `uid`, `gid` and `pid`
    of the process that submitted it, or its `address`; empty where that is not known.
    `deaths`: conductors that died, by conductor and cause. `code_changed`: what has changed of its code since it was submitted, began, or
    the run began that it resumes, a sentence each time that this was found. `hooks_failed`: hooks that could not be told, when the result was asked for.
    A run that has not ended is ``in work``: its `reason` is what it waits for, and `ended_at` the time of the answer.
    """

    uid: str
    name: str
    outcome: RunOutcome | Literal["in work"]
    reason: str
    submitted_at: float
    started_at: float | None
    ended_at: float
    phases: tuple[PhaseResult, ...]
    folder: str
    parent: str | None = None
    seconds: float | None = None
    deaths: tuple[FailureGroup, ...] = ()
    submitted_by: dict[str, Any] = {}
    code_changed: tuple[str, ...] = ()
    hooks_failed: tuple[str, ...] = ()

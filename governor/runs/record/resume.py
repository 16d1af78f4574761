"""What a run takes over from the run that it resumes, so that finished work is not repeated.

Rules:
1. Task runs that succeeded are kept, and episodes that ended by themselves (terminated, truncated). Work that failed,
   timed out, crashed, was cancelled or never began is missing, and is done.
2. Whole phases are kept up to the first one where something is missing; the run continues there, as after a restart
   of the daemon.
3. The old run stays as it is. The new one gets its files: those that Run Governor wrote, only whole and under another
   name, as hard links; all others, which its tasks may modify, as copies. A link into the old run's folder leads to the
   same place of the new one's.
4. The files are complete in a staging folder before the run is in the journal (`staging`).
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.records import checkpoints, episode_file
from governor.episodes.rules.evaluation import planned_episodes
from governor.episodes.rules.failures import allowed
from governor.errors import UsageError
from governor.files import name_of, sync_to_disk
from governor.journal.failures import COUNTED
from governor.messages import BAD_TASKS
from governor.runs.assignment import Assignment
from governor.runs.record import environment, failures, result, snapshot, usage
from governor.runs.record.staging import begin
from governor.tasks.protocol.values import SUFFIXES as VALUE_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.journal.run_records import RunRecords
    from governor.journal.runs_table import RunRow
    from governor.journal.tables import Transaction
    from governor.messages import TaskRecord
    from governor.messages.figures import PhaseFigures
    from governor.run_file.model import Run

CUT_SHORT: Final = frozenset({"failed", "aborted"})
"""Ends of a phase that ended with its run."""
WRITTEN_WHOLE: Final = frozenset({"results", "episodes", "agents", "checkpoints"})
"""Folders of a run in which Run Governor never changes a file in place. Tasks may have written files of their own there."""
MOST_FAILURES: Final = 10_000
"""Of whole phases that are taken over, in the transaction that accepts the run: the first ones."""
_VALUE: Final = re.compile(r".+-\d+")
"""What the files of a task's run are named, without their suffix."""
_EPISODES: Final = frozenset({".jsonl", ".parquet", episode_file.SUFFIX})
_STATE: Final = ".state"
"""How the name of a file with what an agent has learned ends."""
_CAN_BE_WRITTEN: Final = 0o222
OF_ONE_RUN: Final = frozenset(
    {"run.json", "result.json", "report.html", usage.FILE, environment.FILE, *result.FILES.values()}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPhase:
    """`events` are the recorded events of a whole phase, in order; empty where something is missing. `episodes` are the figures
    of the kept ones; `tasks` is the number of task runs; `gone` are those that succeeded and whose value has no file any more.
    """

    index: int
    name: str
    episodes: PhaseFigures
    tasks: int
    gone: frozenset[tuple[str, int]]
    events: tuple[tuple[str, dict[str, Any]], ...]

    @property
    def is_whole(self) -> bool:
        return bool(self.events)

    def keeps(self, task: TaskRecord) -> bool:
        return self.is_whole or (task.outcome == "succeeded" and (task.task, task.run) not in self.gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWork:
    """Of the run `parent`, whose files are in `folder`. `failures` are those of whole phases, as data of events: of others what has
    failed is done again. `restored` is the data of events of agents that learned kept episodes again.
    """

    parent: str
    folder: Path
    phases: tuple[KeptPhase, ...]
    failures: Sequence[dict[str, Any]]
    restored: Sequence[dict[str, Any]]

    @property
    def is_complete(self) -> bool:
        """Nothing is missing."""
        return all(phase.is_whole for phase in self.phases)

    @property
    def first_phase(self) -> int:
        """Where the new run begins; if nothing is missing, the last phase, whose end comes from the record."""
        return next((phase.index for phase in self.phases if not phase.is_whole), len(self.phases) - 1)

    @property
    def failed_phases(self) -> tuple[int, str]:
        """How many of the phases that the new run does not enter had failures, and the line of the first one."""
        ends = [data for phase in self.phases for _, data in phase.events]
        return failures.phases_with_failures(ends, before=self.first_phase)

    async def record_tasks(self, journal: Journal, uid: str) -> None:
        """Records the kept task runs as the new run's own, before it is accepted, some at a time: others write in between. Raises
        JournalError.
        """
        if not any(phase.tasks for phase in self.phases):
            return
        journal.reserved.add(uid)
        await journal.write(lambda transaction: transaction.reserve(uid))
        for phase in self.phases:
            row = -1 if phase.tasks else 0
            while row:
                inherit = partial(_inherit_some, uid=uid, parent=self.parent, phase=phase, after=row)
                row = await journal.write(inherit)

    def record(self, transaction: Transaction, uid: str) -> None:
        """Records all but the tasks as the new run's own; call it in the transaction that records the run."""
        kept = [
            {
                "phase": phase.index,
                "episodes": len(phase.episodes.ended),
                "evaluated": phase.episodes.evaluated,
                "steps": phase.episodes.steps + phase.episodes.evaluation_steps,
                "tasks": phase.tasks,
            }
            for phase in self.phases
        ]
        transaction.event(uid, "run.inherited", {"parent": self.parent, "kept": kept})
        for phase in self.phases:
            if phase.episodes.ended:
                transaction.inherit_episodes(uid, phase.index, phase.episodes)
            for kind, data in phase.events if phase.index < self.first_phase else ():
                transaction.event(uid, kind, {**data, "by": "resume"})
        if self.failures:
            transaction.inherit_failures(uid, self.parent, self.failures)
        for data in self.restored:
            transaction.event(uid, "agent.restored", {**data, "by": "resume"})


def _failures_of(journal: RunRecords, parent: str, phases: Collection[int]) -> Iterator[dict[str, Any]]:
    """Of these phases, as data of events."""
    for failed in failures.each_of(journal, parent, phase=None) if phases else ():
        if failed.kind in COUNTED and failed.phase in phases:
            about = {"kind": failed.kind, "at": failed.at, "phase": failed.phase, "item": failed.item}
            yield {**about, "by": "resume"}


def _inherit_some(transaction: Transaction, *, uid: str, parent: str, phase: KeptPhase, after: int) -> int:
    return transaction.inherit_tasks(uid, phase.index, parent, phase.keeps, after=after)


def find_kept_work(journal: Journal, row: RunRow, run: Run, folder: Path) -> KeptWork:
    """The finished work of a run that has ended. `folder` has its files: a result whose file is gone is missing.

    Raises UsageError when the whole folder is gone, the copy of its code, or a file of kept episodes.
    """
    assignment = Assignment(uid=row.uid, run=run, folder=row.folder)
    phase_events = result.phase_events(journal, row.uid)
    phases = tuple(
        _kept(journal, assignment, index, folder=folder, events=phase_events.get(index, {}))
        for index in range(len(run.phases))
    )
    if not folder.is_dir() and any(phase.episodes.ended or phase.tasks for phase in phases):
        raise UsageError(f"the files of run {row.uid} are gone from {folder}; submit its run file again")
    if run.code == "snapshot" and not (folder / snapshot.FOLDER).is_dir():
        raise UsageError(
            f"the copy of the code of run {row.uid} is gone from {folder}; submit its run file again"
        )
    for phase in phases:
        if phase.episodes.ended:
            _require_files(row.uid, folder, phase)
    whole = {phase.index for phase in phases if phase.is_whole}
    played = {phase.index for phase in phases if phase.episodes.ended}
    restored = journal.standing_events_of(row.uid, ("agent.restored",))
    return KeptWork(
        parent=row.uid,
        folder=folder,
        phases=phases,
        failures=[*islice(_failures_of(journal, row.uid, whole), MOST_FAILURES)],
        restored=[event.data for event in restored if event.data["phase"] in played],
    )


def _require_files(uid: str, folder: Path, phase: KeptPhase) -> None:
    """Of the phase's episodes. Steps are on record of those that ended by themselves."""
    try:
        fault = episode_file.fault_of(folder, phase.name, steps=phase.episodes.complete_steps > 0)
    except OSError as error:
        fault = f"a file of its episodes can't be read: {error}"
    if fault:
        what = "put a copy of the file back, or submit its run file again"
        raise UsageError(f"run {uid} can't be resumed: {fault}; {what}")


def _kept(
    journal: Journal, assignment: Assignment, index: int, *, folder: Path, events: dict[str, dict[str, Any]]
) -> KeptPhase:
    """A part that ended early because its goal was reached misses nothing, unless its failures ended the run."""
    phase = assignment.run.phases[index]
    ends = {part: events.get(f"part.ended {part}", {}).get("end") for part in ("simulation", "tasks")}
    planned = planned_episodes(phase.simulate.episodes, phase.evaluate) if phase.simulate is not None else 0
    bearable = allowed(phase.policy, planned)
    figures = result.figures_of(journal, assignment, index)
    played = (
        phase.simulate is None
        or (ends["simulation"] == "until" and not (bearable is not None and figures.bad > bearable))
        or (ends["simulation"] == "max_episodes" and figures.complete >= planned)
    )
    outcomes = Counter[str]()
    gone = set()
    for task in journal.tasks(assignment.uid, index):
        outcomes[task.outcome] += 1
        if task.outcome == "succeeded" and task.value_file and not (folder / task.value_file).is_file():
            gone.add((task.task, task.run))
    succeeded, ended = outcomes["succeeded"], outcomes.total()
    there = succeeded - len(gone)
    failed = sum(outcomes[outcome] for outcome in BAD_TASKS)
    bearable = allowed(phase.policy, sum(task.repeat for task in phase.tasks))
    broken = bearable is not None and failed > bearable
    done = there >= sum(task.repeat for task in phase.tasks) or (
        ends["tasks"] == "enough" and there == succeeded and not broken
    )
    over = events.get("phase.ended", {}).get("end", "failed") not in CUT_SHORT
    whole = played and done and over
    # What was cancelled because its goal was reached belongs to a whole phase, and is not done again.
    if not whole and figures.complete < len(figures.ended):
        figures = result.complete_figures_of(journal, assignment, index)
    return KeptPhase(
        index=index,
        name=phase.name,
        episodes=figures,
        tasks=ended if whole else there,
        gone=frozenset(gone),
        events=tuple((name.partition(" ")[0], data) for name, data in events.items()) if whole else (),
    )


# -- files ---------------------------------------------------------------------------------------------------------


def stage(kept: KeptWork, folder: Path) -> None:
    """Copies or links the files of the old run into the staging folder of `folder`. Blocks; raises OSError."""
    old = kept.folder
    staging = begin(folder)
    if not old.is_dir():
        return
    phases = frozenset(name_of(phase.name) for phase in kept.phases)
    copying = _Copying(old=old, new=folder, phases=phases)
    for entry in old.iterdir():
        if entry.name not in OF_ONE_RUN:
            copying.copy(entry, staging / entry.name)
    for phase in kept.phases:
        lines = episode_file.path_of(staging, phase.name)
        if not phase.is_whole and lines.exists():
            episode_file.keep_only(lines, phase.episodes.ended)
    sync_to_disk(staging)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """Of files of the folder `old` for the folder `new`. `phases` are the names of the phases' folders."""

    old: Path
    new: Path
    phases: frozenset[str]

    def copy(self, source: Path, target: Path) -> None:
        """Copies a file, a folder with its content, or a link; skips half-written files and sockets."""
        if source.name.startswith(".") and source.name.endswith(".part"):
            return
        if source.is_symlink():
            target.symlink_to(self._moved(source.readlink()))
        elif source.is_dir():
            target.mkdir(mode=0o700)
            for entry in source.iterdir():
                self.copy(entry, target / entry.name)
            sync_to_disk(target)
        elif source.is_file() and not (self._is_written_whole(source) and _linked(source, target)):
            shutil.copy2(source, target)
            sync_to_disk(target)

    def _moved(self, place: Path) -> Path:
        """Where a link to this place leads in the new folder."""
        for old in (self.old, self.old.resolve()):
            if place.is_relative_to(old):
                return self.new / place.relative_to(old)
        return place

    def _is_written_whole(self, file: Path) -> bool:
        """Nothing changes this file in place: Run Governor wrote it, or it can't be written."""
        match file.relative_to(self.old).parts:
            case ("episodes", name):
                return file.suffix in _EPISODES and name.partition(".")[0] in self.phases
            case ("agents", _):
                return file.suffix == _STATE
            case ("checkpoints", phase, name):
                return phase in self.phases and (file.suffix == _STATE or name == checkpoints.INDEX)
            case ("results", phase, _):
                return (
                    phase in self.phases
                    and file.suffix in VALUE_SUFFIXES
                    and _VALUE.fullmatch(file.stem) is not None
                )
            case (snapshot.FOLDER, *_):
                return not file.stat().st_mode & _CAN_BE_WRITTEN
        return False


def _linked(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without links
        return False
    return True

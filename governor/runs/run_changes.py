"""Keys of a run file that get other values once it has been submitted: which of them may, and from when on they count. Pure.

Rules:
1. The changed run is examined whole, as a submitted one is.
2. While a run waits in the queue every key may change, but those of phases that have ended, and `code`.
3. Of a run at work what has begun stays: its conductors, the phases before this one, the graph of tasks. Limits count at once, later phases
   when they begin. For the episodes of this phase the simulation is begun anew, once those that are played have ended; its tasks may get other time-outs and retries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.errors import RunFileError, UsageError
from governor.messages import Fault, ValueChange
from governor.run_file.cells import place_of
from governor.run_file.dotted import UnknownPath, value_at, with_value
from governor.run_file.load import parse
from governor.run_file.model import SIMULATION
from governor.runs.services import filled_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.journal.tables import Transaction
    from governor.run_file.model import Run
    from governor.runs.assignment import Assignment
    from governor.units.sections import Path

AT_ONCE: Final = (
    ("limits",),
    ("restart",),
    ("deadlines", "finalize"),
    ("deadlines", "stop"),
    ("resume",),
    ("labels",),
)
OF_EPISODES: Final = frozenset({"until", "evaluate", "checkpoint", "failures", "on_failure"})
"""Keys of a phase that its simulation looks at."""
OF_EVALUATIONS: Final = (("simulate", "episodes"), ("evaluate", "every"), ("evaluate", "episodes"))
"""By which episodes of evaluations are numbered: below a phase."""
OF_CONDUCTORS: Final = frozenset({"environment", "agents", "transport"})
"""Keys of `simulate` that need other processes."""
OF_ATTEMPTS: Final = frozenset({"timeout", "retries"})
"""Keys of a task that only bound its attempts."""
NOW: Final = "now"
NEXT_EPISODES: Final = "once the episodes that are played have ended"
NEXT_WAIT: Final = "when it waits in the queue again"
"""From when on a value counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """`run` is the changed one, `keys` are those whose value differs, as they were given, with their places."""

    before: dict[str, Any]
    run: Run
    keys: dict[str, Path]

    def told(self, since: Mapping[str, str] | None = None) -> tuple[ValueChange, ...]:
        after = self.run.raw()
        return tuple(
            ValueChange(
                key=key,
                before=value_at(self.before, path),
                after=value_at(after, path),
                since=(since or {}).get(key, ""),
            )
            for key, path in self.keys.items()
        )

    def params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values by which the run is found, as they are now."""
        after, found = self.run.raw(), dict(params)
        for key in params:
            place = _place(after, key)
            if any(path[: len(place)] == place[: len(path)] for path in self.keys.values()):
                found[key] = value_at(after, place)
        return found

    def record(self, transaction: Transaction, uid: str, params: dict[str, Any]) -> None:
        run = self.run
        transaction.respecify(uid, name=run.name, spec=run.raw(), params=params, labels=dict(run.labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedChange:
    """What goes on record with the event, and the run's `assignment` from then on. `renews`: its simulation is begun anew; `tasks`: those of
    this phase that are changed.
    """

    change: RunChange
    values: tuple[ValueChange, ...]
    params: dict[str, Any]
    assignment: Assignment
    renews: bool = False
    tasks: tuple[str, ...] = ()

    @property
    def told(self) -> list[Any]:
        plain: list[Any] = msgspec.to_builtins(self.values)
        return plain

    def record(self, transaction: Transaction) -> None:
        self.change.record(transaction, self.assignment.uid, self.params)


def changed_run(run: Run, values: Mapping[str, Any]) -> RunChange:
    """The run with these values at these paths. Raises UsageError for a path that leads nowhere, RunFileError for faults of the changed run."""
    before: dict[str, Any] = run.raw()
    data: Any = before
    places = {key: _place(before, key) for key in values}
    for key, value in values.items():
        data = with_value(data, places[key], value)
    try:
        made = parse(data, run.name)
    except RunFileError as error:
        faults = [Fault(path=fault.path, message=fault.message) for fault in error.faults]
        raise RunFileError("the run would not be valid", faults) from None
    after = made.raw()
    differ = {key: path for key, path in places.items() if value_at(before, path) != value_at(after, path)}
    return RunChange(before=before, run=made, keys=differ)


def require_possible(change: RunChange, *, first_phase: int, begun: bool, resumes: bool) -> None:
    """For a run in the queue, of which the phases before the first one have ended, and this one may have `begun`; of one that `resumes`
    another later ones, too. Raises UsageError.
    """
    _require_settable(change, first_phase)
    _require_numbers(change, first_phase, begun=begun, resumes=resumes)


def accept(
    change: RunChange,
    assignment: Assignment,
    *,
    params: Mapping[str, Any],
    phase: int | None,
    knows_tasks: bool = True,
    resumes: bool = False,
) -> AcceptedChange:
    """Of a run at work; `phase` is at work, None before the first one. `knows_tasks`: all of its attempts of tasks were counted. `resumes`:
    it has episodes of another run. Raises UsageError for what can't change now.
    """
    current = assignment.first_phase if phase is None else phase
    _require_settable(change, current)
    begun = phase is not None or assignment.worked > 0
    _require_numbers(change, current, begun=begun, resumes=resumes)
    since = {key: _since(path, change.run, phase) for key, path in change.keys.items()}
    if not knows_tasks and change.run.limits.tasks is not None:
        since |= {key: "" for key, path in change.keys.items() if path[:1] == ("limits",)}
    made = replace(assignment, run=filled_in(change.run, assignment.ports))
    moved = made.plan.conductors != assignment.plan.conductors
    if in_use := [key for key, when in since.items() if not when or moved]:
        why = "the run would need other processes" if moved else "what runs uses it"
        raise UsageError(
            f"{', '.join(in_use)} can't be set now: {why}. `governor pause --hard {assignment.uid}`, set it, then "
            f"`governor continue {assignment.uid}`: what has not ended is done again"
        )
    places = (path for path in change.keys.values() if path[2:3] == ("tasks",) and path[1] == phase)
    return AcceptedChange(
        change=change,
        values=change.told(since),
        params=change.params(params),
        assignment=made,
        renews=NEXT_EPISODES in since.values(),
        tasks=tuple(dict.fromkeys(value_at(change.before, path[:4])["id"] for path in places)),
    )


def _since(path: Path, run: Run, phase: int | None) -> str:  # noqa: PLR0911  # one for each kind of key
    """From when on a value counts; "" for never."""
    if any(path[: len(place)] == place for place in AT_ONCE):
        return NOW
    is_played = _is_played(run, phase)
    match path:
        case ("priority",):
            return NEXT_WAIT
        case ("phases", int() as index, *_) if phase is None or index > phase:
            return f"when phase {run.phases[index].name} begins"
        case ("phases", _, "simulate", str() as name, *_) if name not in OF_CONDUCTORS:
            return NEXT_EPISODES if is_played else ""
        case ("phases", _, str() as name, *_) if name in OF_EPISODES:
            return NEXT_EPISODES if is_played else ""
        case ("phases", _, "tasks", int(), str() as name) if name in OF_ATTEMPTS:
            return NOW
        case ("conductors", "agents" | "environments", *_):
            return NEXT_EPISODES if is_played and _is_in_process(run) else ""
        case _:
            return ""


def _is_played(run: Run, phase: int | None) -> bool:
    """Whether the phase at work has episodes alone, of the simulation conductor."""
    return (
        phase is not None and run.phases[phase].parts == {SIMULATION} and run.driver_of(phase) == SIMULATION
    )


def _is_in_process(run: Run) -> bool:
    """Whether the simulation conductor builds all environments and agents."""
    simulated = [phase.simulate for phase in run.phases if phase.simulate is not None]
    return all(each.transport == "in_process" for each in simulated)


def _require_settable(change: RunChange, first_phase: int) -> None:
    for key, path in change.keys.items():
        match path:
            case ("phases", int() as index, *_) if index < first_phase:
                raise UsageError(f"{key} can't be set: phase {change.run.phases[index].name} has ended")
            case ("phases",) if first_phase:
                raise UsageError(f"{key} can't be set as a whole: some of them have ended")
            case ("code",):
                raise UsageError(f"{key} can't be set: a copy is made when a run is submitted")


def _require_numbers(change: RunChange, first: int, *, begun: bool, resumes: bool) -> None:
    """Episodes of evaluations that are on record keep their numbers, which follow those of training."""
    after, before = change.run.raw(), change.before["phases"]
    phases = range(first, len(before) if resumes else first + begun)
    places = [
        ("phases", phase, *place)
        for phase in phases
        if before[phase].get("evaluate") is not None
        for place in OF_EVALUATIONS
    ]
    changed = [place for place in places if value_at(change.before, place) != value_at(after, place)]
    for key, path in change.keys.items():
        if any(path == place[: len(path)] for place in changed):
            raise UsageError(
                f"{key} can't be set: evaluations may be on record, and by the episodes of a phase and its evaluate.every and "
                "evaluate.episodes those of its evaluations are numbered"
            )


def _place(data: Mapping[str, Any], key: str) -> Path:
    try:
        return place_of(data, key)
    except UnknownPath as error:
        raise UsageError(f"{key}: {error}") from None

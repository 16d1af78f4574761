"""What a list of runs shows: which states and keys may be asked for, and the order of a list that is sorted. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from governor.errors import BadRequest, UsageError
from governor.units.paths import is_end
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import ListRuns, RunStatus

LIST_LIMIT: Final = 10_000
"""Maximum number of runs in one answer, and of those that are sorted."""
OUTCOMES: Final = ("finished", "failed", "aborted")
WAITING: Final = ("queued", "interrupted", "damaged")
STATES: Final = (*OUTCOMES, "ended", "running", "paused", *WAITING)
"""``running``: from its assignment to its end."""
_COLUMNS: Final = {
    "name": "name",
    "seconds": "seconds",
    "submitted": "submitted_at",
    "started": "started_at",
    "ended": "ended_at",
}


def require(asked: ListRuns) -> None:
    """Raises BadRequest, UsageError for what no list has."""
    if not 0 < asked.limit <= LIST_LIMIT:
        raise BadRequest(f"limit counts runs, from 1 to {LIST_LIMIT}, and is not {asked.limit}")
    if asked.state is not None and asked.state not in STATES:
        near = suggestion(asked.state, STATES) or f"; there is {', '.join(STATES)}"
        raise UsageError(f"no run is ever in the state {asked.state!r}{near}")
    if asked.sort is not None and asked.after is not None:
        raise UsageError("a sorted list has no next page: say more of what is listed, or a higher limit")


def is_in(run: RunStatus, state: str) -> bool:
    """Whether a run that has not ended is in the state."""
    if run.paused or state == "paused":
        return run.paused and state == "paused"
    return run.state not in WAITING if state == "running" else run.state == state


def in_order(runs: Sequence[RunStatus], key: str, *, descending: bool) -> list[RunStatus]:
    """By the values of a key: numbers before texts, runs without a value last. Raises UsageError for a key that no run has."""
    values = {run.uid: value_of(run, key) for run in runs}
    if runs and all(value is None for value in values.values()):
        known = {*_COLUMNS, *(name for run in runs for name in (*run.params, *run.metrics))}
        raise UsageError(f"no run of the list has {key!r}{suggestion(key, sorted(known))}")
    having = [run for run in runs if values[run.uid] is not None]
    having.sort(key=lambda run: _comparable(values[run.uid]), reverse=descending)
    return having + [run for run in runs if values[run.uid] is None]


def value_of(run: RunStatus, key: str) -> Any:
    """Of a column, a path of a matrix or its end, or a metric; None where the run has none."""
    if key in _COLUMNS:
        return getattr(run, _COLUMNS[key])
    found = next((value for path, value in run.params.items() if is_end(key, path)), None)
    return run.metrics.get(key) if found is None else found


def _comparable(value: Any) -> tuple[int, Any]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, value) if is_number else (1, str(value))

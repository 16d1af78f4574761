"""Between executor and daemon: groups of runs, that one run file with a matrix stands for."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from governor.messages.base import Message

GROUP_PREFIX: Final = "g-"
"""Of the uid of a group: no run has it."""
GroupVerb: TypeAlias = Literal["abort", "pause", "continue", "set", "resume"]


class SubmitGroup(Message, frozen=True):
    """Submits a run file with its matrix, as parsed YAML: all of its runs, or none. As `Submit`; answered with `SubmittedGroup`."""

    run: dict[str, Any]
    folder: str
    key: str | None = None


class SubmittedGroup(Message, frozen=True):
    """The group is in the journal, with all of its `runs` in the order of their cells. `known`: the client's key had been submitted before."""

    uid: str
    runs: tuple[str, ...]
    known: bool = False


class ChangeGroup(Message, frozen=True):
    """`verb` for each run of a group for which it makes sense, as the request of that name for one run; `values` are for ``set``. Answered
    with `GroupChanged`.
    """

    uid: str
    verb: GroupVerb
    reason: str = ""
    hard: bool = False
    dry_run: bool = False
    values: dict[str, Any] = {}


class GroupChanged(Message, frozen=True):
    """`changed`: the number of runs that are different now, or would be with `dry_run`; 0: all were so already. `runs` are new ones, of a resume."""

    uid: str
    changed: int
    runs: tuple[str, ...] = ()
    dry_run: bool = False


class GetGroup(Message, frozen=True):
    """Answered with the parts of a `GroupReport`, then `Done`. With `phase` the metrics are those of that phase."""

    uid: str
    phase: str | None = None


class WatchGroup(Message, frozen=True):
    """Answered with a `GroupProgress` at once, another one whenever something has changed (about once a second), until all runs have ended."""

    uid: str


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a cell: `state` is its outcome once it has ended, else ``running``, ``queued``, ``paused``, ``interrupted`` or ``damaged``. `params` are its values of the matrix; `metrics` those of its last phase that
    has some; `runs` counts those of the cell: more than one where it was resumed.
    """

    cell: int
    uid: str
    state: str
    params: dict[str, Any]
    reason: str = ""
    metrics: dict[str, float] = {}
    seconds: float | None = None
    runs: int = 1


class GroupReport(Message, frozen=True):
    """A group with its cells. `paths` are those of the matrix."""

    uid: str
    name: str
    submitted_at: float
    paths: tuple[str, ...]
    max_parallel: int | None
    fail_fast: bool
    cells: tuple[CellStatus, ...]


class GroupProgress(Message, frozen=True):
    """Of a group that is watched. `counts` of its cells by state; `ended` are those whose runs have ended since the last message."""

    uid: str
    counts: dict[str, int]
    ended: tuple[CellStatus, ...] = ()

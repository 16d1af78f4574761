"""Episodes, tasks and steps of a run that has ended, as Arrow tables: for `governor.Result`, and for `governor results --of`.

Rule: they come in groups of rows, so that a caller who writes them holds one group in memory, however many there are.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from governor.episodes import trajectories
from governor.episodes.records import episode_file
from governor.errors import UsageError
from governor.messages import EpisodeRecord, TaskRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from governor.messages import PhaseResult

Rows: TypeAlias = Literal["episodes", "tasks", "steps"]

GROUP: Final = 4096
encode_json = msgspec.json.Encoder(enc_hook=str).encode


def _schema(record: type[msgspec.Struct], *before: str) -> pa.Schema:
    """The columns of a record; what is neither a number nor a text becomes a text."""
    kinds = {int: pa.int64(), float: pa.float64()}
    columns = [
        (field.name, kinds.get(field.type, pa.string()))
        for field in msgspec.structs.fields(record)
        if (record, field.name) != (EpisodeRecord, "metrics")
    ]
    return pa.schema([*((name, pa.string()) for name in before), *columns])


EPISODES: Final = _schema(EpisodeRecord, "phase", "mode")
TASKS: Final = _schema(TaskRecord, "phase")


def rows_of(
    uid: str, folder: Path, phases: Sequence[PhaseResult], rows: Rows, *, phase: str | None
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """The rows of the run `uid`, of one `phase` or of all, with their columns.

    Raises UsageError for a phase that the run does not have, for a folder that is not here, and for steps of phases that
    differ in their columns; OSError, also while groups are read.
    """
    order = [one.name for one in phases]
    known = [*order, *trajectories.phases_of(folder)] if rows == "steps" else order
    if phase is not None and phase not in known:
        raise UsageError(f"run {uid} has no phase {phase!r}: {_listed(order)}")
    wanted = [one for one in phases if phase in (None, one.name)]
    if rows == "tasks" and not any(one.tasks_file for one in wanted):
        return TASKS, _grouped(_tasks(wanted, folder), TASKS)
    if not folder.is_dir():
        raise UsageError(
            f"the folder of run {uid}, {folder}, is not on this machine: ask where its daemon runs"
        )
    if rows == "tasks":
        return TASKS, _grouped(_tasks(wanted, folder), TASKS)
    if rows == "episodes":
        paths = [episode_file.path_of(folder, one.name) for one in wanted]
        return EPISODES, _grouped(_lines(path for path in paths if path.exists()), EPISODES)
    return _steps(folder, order, phase=phase)


def _tasks(phases: Iterable[PhaseResult], folder: Path) -> Iterator[dict[str, Any]]:
    for phase in phases:
        yield from ({"phase": phase.name, **_task(task)} for task in phase.tasks)
        if phase.tasks_file is not None:
            with (folder / phase.tasks_file).open("rb") as file:
                yield from (
                    {"phase": phase.name, **_task(msgspec.convert(json.loads(line), TaskRecord))}
                    for line in file
                )


def _task(task: TaskRecord) -> dict[str, Any]:
    texts = {name: encode_json(getattr(task, name)).decode() for name in ("value", "metrics")}
    return {**msgspec.structs.asdict(task), **texts}


def _lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for path in paths:
        with path.open("rb") as file:
            yield from (_episode(decode(line)) for line in file if line.endswith(b"\n"))


def _episode(line: dict[str, Any]) -> dict[str, Any]:
    """`values`, the returns of several players, become a text: not every episode has the same players."""
    return {**line, "values": encode_json(line["values"]).decode()} if "values" in line else line


def _grouped(records: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.Table]:
    while group := list(islice(records, GROUP)):
        yield pa.Table.from_pylist(group, schema=schema)


def _steps(folder: Path, order: list[str], *, phase: str | None) -> tuple[pa.Schema, Iterator[pa.Table]]:
    recorded = sorted(
        trajectories.phases_of(folder),
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    names = [name for name in recorded if phase in (None, name)]
    parts = [part for name in names if (part := trajectories.tables(folder, name, ended=True)) is not None]
    if not parts:
        return pa.schema([]), iter(())
    if any(not schema.equals(parts[0][0]) for schema, _ in parts):
        raise UsageError(f"the phases {_listed(names)} have different columns: choose one")
    return parts[0][0], chain.from_iterable(groups for _, groups in parts)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"

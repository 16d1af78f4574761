"""Episodes, tasks and steps of a run that has ended, as Arrow tables: for `governor.Result`, and for `governor results --of`.

Rule: they come in groups of rows, so that a caller who writes them holds one group in memory, however many there are.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
import pyarrow as pa

from governor.episodes import trajectories
from governor.episodes.records import episode_file
from governor.episodes.records.info_columns import aligned
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
"""Without their metrics, which have a column each: ``metrics.<name>``."""
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
        paths = [path for one in wanted if (path := episode_file.path_of(folder, one.name)).exists()]
        names = sorted(set().union(*map(_metrics_in, paths)))
        schema = pa.schema([*EPISODES, *((f"metrics.{name}", pa.float64()) for name in names)])
        return schema, _grouped(_lines(paths), schema)
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


class _Metrics(msgspec.Struct):
    metrics: dict[str, float] = {}  # msgspec copies it


def _metrics_in(path: Path) -> set[str]:
    """The names of the metrics that its episodes have. Raises OSError."""
    decode = msgspec.json.Decoder(_Metrics).decode
    found: set[str] = set()
    with path.open("rb") as file:
        for line in file:
            if b'"metrics":' in line and line.endswith(b"\n"):
                found.update(decode(line).metrics)
    return found


def _episode(line: dict[str, Any]) -> dict[str, Any]:
    """`values`, the returns of several players, become a text: not every episode has the same players."""
    metrics = {f"metrics.{name}": value for name, value in line.pop("metrics", {}).items()}
    if "values" in line:
        line["values"] = encode_json(line["values"]).decode()
    return line | metrics


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
    schema = trajectories.common_schema([schema for schema, _ in parts])
    if schema is None:
        raise UsageError(
            f"the phases {_listed(names)} have different columns: choose one (--phase, in Python phase)"
        )
    return schema, (aligned(table, schema) for _, groups in parts for table in groups)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"

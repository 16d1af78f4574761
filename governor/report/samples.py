"""The steps of chosen episodes, and the messages of chosen text sessions.

Rule: only a phase whose steps are in their Parquet file is read, and of that only the row groups with these episodes, one at a time: the
streams of a phase at work would have to be merged first.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from governor.episodes.records import pictures
from governor.episodes.records.episode_file import parquet_of
from governor.episodes.records.merge import reading
from governor.episodes.records.step_columns import is_text, rows_schema, table_schema
from governor.report.document import Column, EpisodeSteps, Session, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.report.tables import Choice

MOST_STEPS: Final = 1_000
"""Of one episode; the first ones."""
MOST_MESSAGES: Final = 200
MOST_TEXT: Final = 20_000
"""Characters of a message."""
MOST_VALUE: Final = 500
"""Characters of an observation or action that is not a number."""
_KNOWN: Final = frozenset(
    {"phase", "worker", "episode", "attempt", "seed", "outcome", "started", "session", "reason"}
)


def samples_of(
    run_folder: Path, phase: str, chosen: Sequence[Choice]
) -> tuple[list[EpisodeSteps], list[Session]]:
    """Blocks. Raises OSError, StepsDamaged."""
    path = parquet_of(run_folder, phase)
    if not chosen or not path.exists():
        return [], []
    with reading(path), pq.ParquetFile(path) as file:
        text = is_text(table_schema(rows_schema(file.schema_arrow)))
        if "episode" not in file.schema_arrow.names:
            return [], []
        places = _places(file, {choice.line.index for choice in chosen})
        shown = {index: found if text else found[:MOST_STEPS] for index, found in places.items()}
        rows = _rows(file, shown)
    found = [(choice, rows[index]) for choice in chosen if (index := choice.line.index) in rows]
    if text:
        return [], [_session(phase, choice, each.to_pylist()) for choice, each in found]
    return [_steps(phase, choice, each, of=len(places[choice.line.index])) for choice, each in found], []


def _places(file: pq.ParquetFile, wanted: set[int]) -> dict[int, list[tuple[int, int]]]:
    """Row group and row of each step of these episodes, of which the file has the last attempt alone."""
    places: dict[int, list[tuple[int, int]]] = {}
    for group in range(file.num_row_groups):
        if not _may_have(file.metadata.row_group(group), wanted):
            continue
        table = file.read_row_group(group, columns=["episode"], use_threads=False)
        episodes = np.asarray(table["episode"])
        for row in np.flatnonzero(np.isin(episodes, [*wanted])).tolist():
            places.setdefault(int(episodes[row]), []).append((group, row))
    return places


def _may_have(group: pq.RowGroupMetaData, wanted: set[int]) -> bool:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == "episode" and (known := column.statistics) and known.has_min_max:
            return any(known.min <= index <= known.max for index in wanted)
    return True


def _rows(file: pq.ParquetFile, places: dict[int, list[tuple[int, int]]]) -> dict[int, pa.Table]:
    """The rows at these places by episode, a row group at a time; of pictures no more than their size."""
    parts: dict[int, list[pa.Table]] = {}
    for group in sorted({group for found in places.values() for group, _ in found}):
        table = pictures.described(file.read_row_group(group, use_threads=False))
        for index, found in places.items():
            if here := [row for of_group, row in found if of_group == group]:
                parts.setdefault(index, []).append(table.take(here))
    return {index: pa.concat_tables(tables) for index, tables in parts.items()}


def _steps(phase: str, choice: Choice, rows: pa.Table, *, of: int) -> EpisodeSteps:
    """`rows` are those that are shown `of` so many."""
    shown = rows.to_pylist()
    names = [name for name in shown[0] if name not in _KNOWN]
    return EpisodeSteps(
        phase=phase,
        episode=choice.line.index,
        why=choice.why,
        outcome=choice.line.outcome,
        value=_value(choice),
        columns=[_column(name, [row[name] for row in shown]) for name in names],
        left_out=of - len(shown),
    )


def _value(choice: Choice) -> float:
    """NaN, which is null on the page, where the return is not finite."""
    return math.nan if choice.line.value is None else choice.line.value


def _column(name: str, values: list[Any]) -> Column:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return Column(name=name, kind="number", values=values)
    return Column(name=name, kind="text", values=[_text(value)[:MOST_VALUE] for value in values])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value, enc_hook=str).decode()


def _session(phase: str, choice: Choice, rows: list[dict[str, Any]]) -> Session:
    """A step's row has the messages before it: the last one those of the whole session."""
    last = rows[-1]
    turns = [
        Turn(role=str(message.get("role", "")), text=_content(message)[:MOST_TEXT])
        for message in _messages(last.get("messages"))
    ]
    answers = [turn for turn in turns if turn.role == "assistant"]
    for row, turn in zip(rows[:-1], answers[-len(rows[:-1]) :] if rows[:-1] else [], strict=False):
        turn.step, turn.reward = row.get("step_id"), row.get("step_reward")
    turns.append(
        Turn(
            role="assistant",
            text=_text(last.get("response"))[:MOST_TEXT],
            step=last.get("step_id"),
            reward=last.get("step_reward"),
        )
    )
    if last.get("env_state"):
        turns.append(Turn(role="environment", text=_text(last["env_state"])[:MOST_TEXT]))
    return Session(
        phase=phase,
        episode=choice.line.index,
        why=choice.why,
        outcome=choice.line.outcome,
        value=_value(choice),
        messages=turns[:MOST_MESSAGES],
        left_out=max(0, len(turns) - MOST_MESSAGES),
    )


def _messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return [{"role": "", "content": value}]
    return [message for message in value or [] if isinstance(message, dict)]


def _content(message: dict[str, Any]) -> str:
    return _text(message.get("content"))

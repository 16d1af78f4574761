"""The steps of chosen episodes, and the messages of chosen text sessions.

Rule: only a phase whose steps are in their Parquet file is read, and of that only the row groups with these episodes: the streams
of a phase at work would have to be merged first.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from governor.episodes.records.merge import parquet_of
from governor.episodes.records.step_columns import is_text, rows_schema, table_schema
from governor.report.document import Column, EpisodeSteps, Session, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

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
    """Blocks. Raises OSError."""
    path = parquet_of(run_folder, phase)
    if not chosen or not path.exists():
        return [], []
    wanted = [choice.line.index for choice in chosen]
    with pq.ParquetFile(path) as file:
        text = is_text(table_schema(rows_schema(file.schema_arrow)))
        if "episode" not in file.schema_arrow.names:
            return [], []
    rows = pq.read_table(path, filters=[("episode", "in", wanted)])
    found = [
        (choice, _last_attempt(each))
        for choice in chosen
        if len(each := rows.filter(pc.field("episode") == choice.line.index))
    ]
    if text:
        return [], [_session(phase, choice, each.to_pylist()) for choice, each in found]
    return [_steps(phase, choice, each) for choice, each in found], []


def _last_attempt(rows: pa.Table) -> pa.Table:
    if "attempt" not in rows.schema.names:
        return rows
    attempts = pc.fill_null(rows["attempt"], 0)
    return rows.filter(pc.equal(attempts, pc.max(attempts)))


def _steps(phase: str, choice: Choice, rows: pa.Table) -> EpisodeSteps:
    """Only the rows that are shown become Python objects."""
    shown = rows.slice(0, MOST_STEPS).to_pylist()
    names = [name for name in shown[0] if name not in _KNOWN]
    return EpisodeSteps(
        phase=phase,
        episode=choice.line.index,
        why=choice.why,
        outcome=choice.line.outcome,
        value=_value(choice),
        columns=[_column(name, [row[name] for row in shown]) for name in names],
        left_out=len(rows) - len(shown),
    )


def _value(choice: Choice) -> float:
    """NaN, which is null on the page, where the return is not finite."""
    return math.nan if choice.line.value is None else choice.line.value


def _column(name: str, values: list[Any]) -> Column:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return Column(name=name, kind="number", values=values)
    return Column(name=name, kind="text", values=[_text(value)[:MOST_VALUE] for value in values])


def _text(value: Any) -> str:
    if isinstance(value, str | bytes):
        return str(_without_pictures(value))
    return "" if value is None else msgspec.json.encode(_without_pictures(value), enc_hook=str).decode()


def _without_pictures(value: Any) -> Any:
    """Their bytes are nothing to read."""
    if isinstance(value, dict):
        return {key: _without_pictures(part) for key, part in value.items()}
    return f"{len(value):,} bytes" if isinstance(value, bytes) else value


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

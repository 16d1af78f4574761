"""Sessions of a language model with text environments, step by step on disk; the default data manager of an Interactor.

Rules:
1. A step is written to the kernel when `record_step` returns, the end of a session when `end_session` does: a crash of the
   process loses nothing that was recorded before.
2. A session's id is unique, so a rerun into the same folder never mixes with the earlier run.
3. Messages and states of environments may be any values: they are stored as JSON text, other values as their `repr`.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from time import time_ns
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa

from governor.episodes.records.step_columns import KIND, session_number
from governor.episodes.records.stream import Stream, StreamedRun
from governor.failures import utf8

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA: Final = pa.schema(
    [
        pa.field("session", pa.string(), nullable=False),
        pa.field("episode", pa.int64()),
        pa.field("env_name", pa.string(), nullable=False),
        pa.field("env_id", pa.string(), nullable=False),
        pa.field("group_id", pa.string()),
        pa.field("llm_model", pa.string()),
        pa.field("step_id", pa.int64(), nullable=False),
        pa.field("messages", pa.string()),
        pa.field("response", pa.string()),
        pa.field("step_reward", pa.float64()),
        pa.field("env_state", pa.string()),
        pa.field("terminated", pa.bool_(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("is_trainable", pa.bool_(), nullable=False),
        pa.field("weight_version", pa.int64()),
    ],
    metadata={KIND: b"text"},
)
_NO_ROWS: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)


@dataclass
class SessionContext:
    """One episode of one environment, as a data manager keeps it. `total_reward` is the undiscounted sum of the recorded rewards;
    `start_time` is in seconds. A manager may set further attributes.
    """

    session_id: str
    env_id: str
    env_name: str
    llm_model: str | None
    group_id: str | None = ""
    job_id: str = ""
    total_reward: float = 0.0
    start_time: float = 0.0
    message_history: list[dict[str, Any]] = field(default_factory=list)
    is_session_completed: bool = False


@dataclass(slots=True, kw_only=True)
class TextSession(SessionContext):
    """Of a `DataManager`."""

    session_id: str = field(default_factory=lambda: uuid4().hex)
    started: int
    """Microseconds since 1970; sessions are read in this order."""
    episode: int | None = None
    """Its number in the phase of a run."""
    steps: int = 0

    @property
    def id(self) -> str:
        return self.session_id


class DataManager:
    """Thread-safe. Raises OSError for a full disk: what was recorded before stays, and the next step may succeed."""

    def __init__(self, folder: Path, *, phase: str = "interactor", worker: int = 0) -> None:
        """`folder` is the run's. Processes that share a folder and a phase need no coordination."""
        self._stream = Stream(folder, phase=phase, worker=worker, schema=SCHEMA)
        self._lock = threading.Lock()
        self._last_start = 0
        self._prefix = uuid4().hex[:16]

    def create_session(
        self,
        *,
        env_id: object,
        env_name: object,
        llm_model: object = None,
        group_id: object = None,
        episode: int | None = None,
    ) -> TextSession:
        with self._lock:
            self._last_start = max(time_ns() // 1000, self._last_start + 1)
            started = self._last_start
        return TextSession(
            env_name=_text(env_name),
            env_id=_text(env_id),
            group_id=None if group_id is None else _text(group_id),
            llm_model=None if llm_model is None else _text(llm_model),
            started=started,
            episode=episode,
            session_id=f"{self._prefix}{started:016x}",
        )

    def made(self, session: str) -> bool:
        """Whether the session with this id is of this manager, not of another one in the same folder."""
        return session.startswith(self._prefix)

    def record_step(
        self,
        *,
        session: TextSession,
        step_id: int,
        messages: Any,
        response: str | None,
        step_reward: float | None,
        env_state: Any,
        terminated: bool,
        truncated: bool,
        is_trainable: bool,
        weight_version: int | None = None,
    ) -> None:
        """Records one step: `messages` are chat messages, `response` is the text of the answer, `step_reward` a float, which is added to
        the session's `total_reward`; `env_state` may be any value.
        """
        row = {
            "session": session.id,
            "episode": session.episode,
            "env_name": session.env_name,
            "env_id": session.env_id,
            "group_id": session.group_id,
            "llm_model": session.llm_model,
            "step_id": step_id,
            "messages": _json(messages),
            "response": None if response is None else _text(response),
            "step_reward": step_reward,
            "env_state": _json(env_state),
            "terminated": terminated,
            "truncated": truncated,
            "is_trainable": is_trainable,
            "weight_version": weight_version,
        }
        self._append(session, pa.RecordBatch.from_pylist([row], schema=SCHEMA))
        session.steps += 1
        session.total_reward += step_reward or 0.0

    def end_session(self, session: TextSession, *, outcome: str, reason: str = "") -> None:
        """Records how it ended: the columns `outcome` and `reason` of all its steps."""
        self._append(session, _NO_ROWS, outcome=outcome, reason=_text(reason))

    def _append(
        self, session: TextSession, batch: pa.RecordBatch, *, outcome: str = "", reason: str = ""
    ) -> None:
        run = StreamedRun(
            episode=session.started,
            attempt=1,
            seed=session_number(session.id),
            step=session.steps,
            rows=batch.num_rows,
            outcome=outcome,
            reason=reason,
        )
        with self._lock:
            self._stream.append(batch, [run])

    def close(self) -> None:
        """May be called again. `trajectories.finalize` makes the Parquet file."""
        with self._lock:
            self._stream.close()


def _text(value: object) -> str:
    """Text of a model or an environment may contain half a surrogate pair, which is not UTF-8."""
    return utf8(str(value))


def _json(value: Any) -> str | None:
    if value is None:
        return None
    for encode in (_encode, _encode_loosely):
        with suppress(TypeError, ValueError, RecursionError):
            return encode(value).decode()
    return json.dumps(repr(value))


def _encode_loosely(value: Any) -> bytes:
    """Also keys that are not strings, half a surrogate pair; not a circular reference."""
    return json.dumps(value, default=_known, skipkeys=True).encode()


def _known(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)


_encode = msgspec.json.Encoder(enc_hook=_known).encode

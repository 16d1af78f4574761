"""What the scheduler and its runners say to each other: msgspec Structs in msgpack over a zmq socket.

The socket is the runner's own, and its start reports leave through zmq's I/O thread: also when the task holds the
GIL from its first instruction on. It is authenticated and encrypted (CURVE); the keys travel through Ray alone.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Root of all of them."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A result of an earlier run: its value, or the file below the run's folder that holds it."""

    value: Any = None
    file: str | None = None


class Work(_Message, frozen=True, kw_only=True):
    """One attempt. `inputs` holds the runs of each dependency; `repeated` names those to hand over as lists.
    `stem` is the path below the run's folder, without extension, for what is too large to travel.
    """

    ticket: int
    task: str
    run: int
    attempt: int
    call: str
    args: dict[str, Any]
    timeout: float | None
    stem: str
    inputs: dict[str, list[Input]] = {}
    repeated: tuple[str, ...] = ()


class Hello(_Message, frozen=True, kw_only=True):
    """The runner can work. `created` is the start of its process in seconds since the epoch, as psutil has it."""

    pid: int
    created: float
    node: str
    host: str


class Loading(_Message, frozen=True, kw_only=True):
    """The work arrived and its module is being imported."""

    ticket: int


class Begun(_Message, frozen=True, kw_only=True):
    """The callable is called next."""

    ticket: int


class Over(_Message, frozen=True, kw_only=True):
    """The callable has returned or raised; `error` is one line and empty for a success."""

    ticket: int
    seconds: float
    error: str = ""
    traceback: str = ""
    value: Any = None
    value_file: str | None = None
    metrics: dict[str, float] = {}


class Leaving(_Message, frozen=True, kw_only=True):
    """User code ends the process by `os._exit`."""

    ticket: int
    exit_code: int


class Line(_Message, frozen=True, kw_only=True):
    """User code has logged something."""

    ticket: int
    level: str
    text: str


FromRunner: TypeAlias = Hello | Loading | Begun | Over | Leaving | Line

_from_runner = msgspec.msgpack.Decoder(FromRunner)
_work = msgspec.msgpack.Decoder(Work)
encode = msgspec.msgpack.Encoder().encode
decode_from_runner = _from_runner.decode
decode_work = _work.decode

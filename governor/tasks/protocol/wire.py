"""Messages between the scheduler and its runners: msgpack documents in frames on a stream socket.

Rules:
1. A frame (`message_stream`) is one document; several may be written at once.
2. A runner continues only when its message is in the kernel: a report survives its runner, and is sent before user
   code can hold the GIL.
3. A runner's first frame is `Hello` with the secret that it got through Ray; other connections are closed.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

import msgspec

from governor.message_stream import LENGTH
from governor.messages import ReportedSums  # noqa: TC001  # msgspec reads the annotation
from governor.processes.identity import ProcessIdentity  # noqa: TC001  # msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PLAY_CHUNK: Final = "governor.tasks.runner_process.episodes:play"
"""The call of the task that plays a chunk of episodes."""
PROGRAM: Final = "governor.tasks.runner_process.program:run"
"""The call of a task that runs a program."""
LARGEST: Final = 2**31
"""Bytes of one document."""
KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}
"""Idle seconds before the first probe, seconds between probes, and unanswered probes until the end: some 11 s in all."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Root of all of them."""


class Input(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A result of an earlier run: its value, or the file below the run's folder that holds it; `data` is the
    file's content for a runner that cannot see that folder.
    """

    value: Any = None
    file: str | None = None
    data: bytes | None = None


class WorkItem(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One attempt: the `runs` of a task that are to be executed one after the other.

    `call` is ``module:attribute`` or ``pickled:KEY``; `args_key` names arguments that are not plain data. `timeout`
    bounds the attempt in seconds, from the start of its first run. `stem` is the path of files for large values, below
    the run's folder and without the number of the run and the extension. `inputs` holds the results of each dependency,
    by run; those in `repeated` are passed as lists. `payload_inline`: payloads are sent back, not written to files.
    `keeps_tuples`: a tuple that is returned does not become a list. `model` is that of the runner's slot, as the user gave it.
    """

    ticket: int
    batch: int | str
    task: str
    runs: tuple[int, ...]
    attempt: int
    call: str
    args: dict[str, Any] = {}
    args_key: str = ""
    timeout: float | None = None
    stem: str = ""
    inputs: dict[str, list[Input]] = {}
    repeated: tuple[str, ...] = ()
    payload_inline: bool = False
    is_eval: bool = False
    model: Any = None
    keeps_tuples: bool = False


class Bundle(_Message, frozen=True):
    """Attempts to be executed one after the other; those not yet claimed can be taken back."""

    work_items: list[WorkItem]


class Serve(_Message, frozen=True, kw_only=True):
    """The runner works for this driver from now on: it connects to `path`, or by TCP to `address`, and sends its `Hello`.

    `run` and `run_folder` are for user code. `marker` is a file in that folder: a runner that sees it shares the folder.
    What user code prints goes to spools of `conductor` in `spools`, a folder of the driver's machine; None: where Ray sends it.
    """

    run: str
    run_folder: str
    path: str
    address: tuple[str, int]
    secret: bytes
    runner: int
    marker: str
    spools: str | None = None
    conductor: str = ""


class Hello(_Message, frozen=True, kw_only=True):
    """The runner is ready. `mark` is the part of the given process mark that its process bears; `ticket_pipe` and
    `cancel_pipe` are descriptors of its pipes (`ticket_pipe.py`); `shares_folder`: it sees the run's folder. `is_stale`: code
    that it has imported was changed since: it is to be replaced. `spools` is the folder on its own machine where the driver has to
    fetch its output; "": there is nothing to fetch.
    """

    secret: bytes
    runner: int
    identity: ProcessIdentity
    mark: int
    node: str
    host: str
    ticket_pipe: int
    cancel_pipe: int
    shares_folder: bool
    is_stale: bool = False
    spools: str = ""

    @property
    def pid(self) -> int:
        return self.identity.pid


class _AttemptReport(_Message, frozen=True):
    """A message about the attempt with this ticket."""

    ticket: int


class Loading(_AttemptReport, frozen=True):
    """The attempt was claimed, and its module is being imported."""


class Begun(_AttemptReport, frozen=True):
    """The callable is called next for this run; `at` is the runner's monotonic clock."""

    run: int
    at: float


class Over(_AttemptReport, frozen=True):
    """The callable has returned or raised; `error` is one line and empty for a success. `at` is the runner's clock.
    `dropped`: the attempt was cancelled, and its other runs are not executed. `leaves_processes`: it is the last of a bundle, and
    there are processes below the runner, or threads of user code, which may start some. `crashed`: a program of the task was killed
    by a signal.
    """

    run: int
    at: float
    seconds: float
    error: str = ""
    traceback: str = ""
    value: Any = None
    value_file: str | None = None
    metrics: dict[str, float] = {}
    payload: bytes = b""
    dropped: bool = False
    leaves_processes: bool = False
    crashed: bool = False


class Leaving(_Message, frozen=True):
    """User code ends the process by `os._exit`."""

    exit_code: int


class StateUpdate(_AttemptReport, frozen=True):
    """User code has set keys of its runner's state; all values are plain data."""

    state: dict[str, Any]


class Reported(_AttemptReport, frozen=True):
    """User code has reported numbers."""

    run: int
    values: dict[str, ReportedSums]


class File(_Message, frozen=True):
    """A file of the run from a runner that cannot see its folder: precedes the `Over` that names it."""

    name: str
    data: bytes


Report: TypeAlias = Loading | Begun | Over | StateUpdate | Reported
"""What a runner tells of its attempts."""
REPORTS: Final = frozenset(get_args(Report))
FromRunner: TypeAlias = Hello | Report | Leaving | File

_encoder = msgspec.msgpack.Encoder()
decode_from_runner: Callable[[memoryview], FromRunner] = msgspec.msgpack.Decoder(FromRunner).decode
decode_to_runner: Callable[[memoryview], Bundle | Serve] = msgspec.msgpack.Decoder(Bundle | Serve).decode


def frames(messages: Iterable[Bundle | Serve | FromRunner]) -> bytearray:
    """The encoded messages with their length prefixes."""
    out = bytearray()
    for message in messages:
        start = len(out)
        out += b"\0\0\0\0"
        _encoder.encode_into(message, out, start + LENGTH.size)
        LENGTH.pack_into(out, start, len(out) - start - LENGTH.size)
    return out


def keep_alive(sock: socket.socket) -> None:
    """Enables TCP keep-alive, so that the loss of the other machine ends the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)

"""Spools: the files that take the output of one process, and the format of what is in them.

Rules:
1. A spool is opened with O_APPEND: a write never waits for a reader, and is there after kill -9 of the writer.
2. In ``runs/<id>/logs/spool/`` a process has ``<conductor>@<pid>-<token>.out`` and ``.err``, one for each stream, and
   ``.now`` (`attribution`), which also says how far they were read; of a process on another machine their reader makes it.
3. Each writer holds a shared lock (flock) on it, which its descendants inherit with the descriptor: when nobody holds one,
   nobody will write to it again.
4. Bytes outside of records are raw: of C code, of subprocesses. Python writes *records*, one write for each:
   ``RECORD {JSON} TEXT line NEWLINE``. Keys of the JSON: `at`, `level`, `logger`, `pid` (if it is not that of the name), the fields of
   an attribution; `part` (a thread: this text goes on where its last one ended) with `more` (the line is not over); `lost` (lines
   that could not be written before).
5. A record with `mark` has no text: raw bytes from the offset `since` up to it (without: those behind it) belong to its fields.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import time
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Final

FOLDER: Final = "spool"
STREAMS: Final = {"out": "stdout", "err": "stderr"}
NOW: Final = "now"
RECORD: Final = b"\x1e"
TEXT: Final = b"\x1f"
LINE_BYTES: Final = 16 << 10
"""The text of a record; longer lines have several."""

_lseek: Final = ctypes.PyDLL(None).lseek
_lseek.restype = ctypes.c_long
_NOTHING: Final = ctypes.c_long(0)


def folder_of(run_folder: Path | str) -> Path:
    """The folder of a run's spools."""
    return Path(run_folder) / "logs" / FOLDER


def make_folder(folder: Path) -> None:
    """For the user alone, and so is the folder around it: of that `parents` makes one for all. Raises OSError."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def new_stem(conductor: str, pid: int | None = None) -> str:
    """The name of a new process' spools without their suffix."""
    return f"{conductor}@{os.getpid() if pid is None else pid}-{time.time_ns():x}"


def parse_stem(stem: str) -> tuple[str, int]:
    """Conductor and pid. Raises ValueError for a name that `new_stem` does not make."""
    conductor, _, rest = stem.rpartition("@")
    return conductor, int(rest.partition("-")[0])


def create(folder: Path, stem: str, suffix: str) -> int:
    """The descriptor of a new spool, open for appending and locked; it appears in the folder locked. Raises OSError."""
    make_folder(folder)
    path = folder / f"{stem}.{suffix}"
    part = folder / f".{path.name}"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = above_streams(os.open(part, flags, 0o600))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        part.rename(path)
    except OSError:
        os.close(descriptor)
        part.unlink(missing_ok=True)
        raise
    return descriptor


def above_streams(descriptor: int) -> int:
    """Another descriptor in its place if it is 0, 1 or 2, because user code has closed that."""
    if descriptor > 2:  # standard error
        return descriptor
    other = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return other


def size(descriptor: int) -> int:
    """Of a spool, in bytes; -1 if user code has closed it. This keeps the GIL: `os.lseek` gives it up, and to get it back from a busy
    thread takes longer than the episode of a fast environment.
    """
    found: int = _lseek(descriptor, _NOTHING, os.SEEK_END)
    return found


def fragment(**fields: str | float) -> bytes:
    """Fields as the inside of a JSON object, each with a comma behind it."""
    found = ""
    for key, value in fields.items():
        if type(value) is str:  # 20 times as fast as `dumps`
            found += f'"{key}":{_quoted(value)},'
        else:
            found += f'"{key}":{value if type(value) is int else json.dumps(value)},'
    return found.encode()


def fragment_of_task(task: str, run: int, attempt: int) -> bytes:
    """As `fragment`, in a quarter of its time."""
    return b'"task":%b,"run":%d,"attempt":%d,' % (_quoted(task).encode(), run, attempt)


def _quoted(text: str) -> str:
    """As JSON. Half of a surrogate pair, of a name that is not UTF-8 for one, is written out: no JSON has it."""
    quoted = encode_basestring_ascii(text)
    if "\\ud" in quoted:
        return encode_basestring_ascii(text.encode("utf-8", "backslashreplace").decode())
    return quoted


def record(fields: bytes, text: bytes) -> bytes:
    """`fields`: a fragment; `text` is one line."""
    return b'%b{%b"at":%.6f}%b%b\n' % (RECORD, fields, time.time(), TEXT, text)


def mark(fields: bytes, since: int | None = None) -> bytes:
    """`fields`: a fragment."""
    place = b"" if since is None else b'"since":%d,' % since
    return b'%b{%b%b"mark":1}%b\n' % (RECORD, fields, place, TEXT)

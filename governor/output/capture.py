"""The process' side: its standard output and standard error go to spools from now on.

Rules:
1. Descriptors 1 and 2 are spools: what C code and subprocesses print is there when their `write` returns.
2. `sys.stdout` and `sys.stderr` write records: whole lines, and what is held of a line when it is flushed. Where user code has
   sent a descriptor elsewhere (`os.dup2`), they write there, and no records; where it has closed it, to the spool.
3. Loggers: what a `StreamHandler` of user code prints bears level and logger; where nobody has set up `logging`, each record that its
   logger lets through is printed. Warnings are records of the logger `py.warnings`.
4. Nothing here raises or waits: with a full disk lines are lost, and counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Final

from governor.output import attribution, spool, streams
from governor.output.streams import Output

VARIABLE: Final = "RUN_GOVERNOR_OUTPUT"
SUFFIXES: Final = tuple(spool.STREAMS)
_LINE_BUFFERED: Final = 1
"""_IOLBF of libc."""
_place: tuple[str, str] | None = None
"""Folder and conductor of this process' spools."""
_outputs: list[Output] = []
_kept: list[object] = []
"""Streams that would close their descriptor if they were collected."""


class _LastHandler(logging.StreamHandler[Any]):
    """For records of loggers without a handler, instead of the standard library's, which prints warnings alone."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


_emit = logging.StreamHandler.emit


def _emit_with_fields(handler: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
    outer = getattr(streams.current_record, "fields", b"")
    streams.current_record.fields = spool.fragment(level=record.levelname.lower(), logger=record.name)
    try:
        _emit(handler, record)
    finally:
        streams.current_record.fields = outer


_show = warnings.showwarning


def _show_warning(*args: Any, **kwargs: Any) -> None:
    outer = getattr(streams.current_record, "fields", b"")
    streams.current_record.fields = spool.fragment(level="warning", logger="py.warnings")
    try:
        _show(*args, **kwargs)
    finally:
        streams.current_record.fields = outer


def capture(folder: Path, *, conductor: str) -> int | None:
    """Redirects this process, and what it starts, to new spools in `folder` (`spool.folder_of`); again in a process whose output
    is captured already: to other ones.

    Returns a duplicate of its former standard error, for our own log; None if there was none. Raises OSError, and
    has changed nothing then.
    """
    global _place  # noqa: PLW0603  # as of `attribution`
    stem = spool.new_stem(conductor)
    page = folder / f"{stem}.{spool.NOW}"
    with contextlib.ExitStack() as made:
        spool.make_folder(folder)
        made.callback(page.unlink, missing_ok=True)
        # before the spools: their reader looks for its page
        process = attribution.ProcessAttribution((-1, -1), page)
        spools = []
        for suffix in SUFFIXES:
            spools.append(spool.create(folder, stem, suffix))
            made.callback(os.close, spools[-1])
        process.use((spools[0], spools[1]))
        made.pop_all()
    try:
        former: int | None = os.dup(2)
    except OSError:
        former = None
    if _outputs:
        process.use(_redirect_again(spools))
    else:
        _redirect(spools)
    attribution.use(process)
    _place = (str(folder), conductor)
    return former


def goes_to(folder: Path, *, conductor: str) -> bool:
    """Whether the output is captured there, and user code has left it so."""
    with contextlib.suppress(OSError):
        return _place == (str(folder), conductor) and all(map(Output.is_whole, _outputs))
    return False


def for_child() -> dict[str, str]:
    """Environment variables for a Python process that this one starts, and that calls `capture_as_told`."""
    return {} if _place is None else {VARIABLE: json.dumps(_place)}


def capture_as_told() -> None:
    """As the process that has started this one is captured; if it is not, or if a disk is full, output goes where it went."""
    place = os.environ.pop(VARIABLE, "")
    with contextlib.suppress(OSError, ValueError):
        folder, conductor = json.loads(place)
        if (former := capture(Path(folder), conductor=conductor)) is not None:
            os.close(former)


def release(descriptor: int) -> None:
    """The output of a captured process goes to `descriptor` from now on, as it is; its spools are complete. Threads of user code may
    print on meanwhile.
    """
    flush()
    attribution.use(None)
    _redirect_again([spool.above_streams(os.dup(descriptor)) for _ in _outputs])
    for output in _outputs:
        output.is_captured = False


def _redirect(spools: list[int]) -> None:
    for index, (name, descriptor) in enumerate(zip(("stdout", "stderr"), spools, strict=True)):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            getattr(sys, name).flush()
        os.dup2(descriptor, index + 1)
        _kept.extend((getattr(sys, name), getattr(sys, f"__{name}__")))
        output = Output(index, descriptor)
        _outputs.append(output)
        setattr(sys, name, output)
        setattr(sys, f"__{name}__", output)
    logging.StreamHandler.emit = _emit_with_fields  # type: ignore[method-assign, assignment]
    logging.lastResort = _LastHandler()
    warnings.showwarning = _show_warning
    faulthandler.enable(file=spools[1])
    os.register_at_fork(after_in_child=_after_fork)
    with contextlib.suppress(ValueError):  # another libc
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0))


def _redirect_again(descriptors: list[int]) -> tuple[int, int]:
    """Streams and handlers of user code hold the `Output`s, and faulthandler a descriptor: these stay. Returns the descriptors."""
    flush()
    for output, descriptor in zip(_outputs, descriptors, strict=True):
        os.dup2(descriptor, output.index + 1)
        os.dup2(descriptor, output.spool, inheritable=False)
        os.close(descriptor)
        output.identify()
    return _outputs[0].spool, _outputs[1].spool


def logger(name: str = "context") -> logging.Logger:
    """What user code gets as `context.log`: every level is printed, however it has set up `logging`."""
    one = logging.getLogger(name)
    if not one.handlers:
        one.setLevel(logging.DEBUG)
        one.propagate = False
        one.addHandler(_LastHandler())
    return one


def flush() -> None:
    """Writes what is held of lines that are not over."""
    for output in _outputs:
        output.flush()


def flush_soon() -> None:
    """As `flush`, for an event loop."""
    for output in _outputs:
        output.flush_soon()


def take_handlers(name: str) -> None:
    """The handlers that our own log has on the root logger serve the logger `name` alone, and user code sets up the root as in any
    script.
    """
    ours, logging.root.handlers = logging.root.handlers, []
    one = logging.getLogger(name)
    for handler in (*ours, logging.lastResort):
        if handler is not None:
            one.addHandler(handler)


def end_lines() -> None:
    """As `flush`; and no line goes on behind it."""
    for output in _outputs:
        output.end_lines()
    if not _outputs or sys.stdout is not _outputs[0] or sys.stderr is not _outputs[1]:
        flush()


def _after_fork() -> None:
    streams.note_fork()
    if (process := attribution.process_attribution()) is not None:
        process.leave()
    for stream in (sys.__stdout__, sys.__stderr__):
        if isinstance(stream, Output):
            stream.forget()

"""What user code raises under `governor try`: shown as Python would, without our own frames."""

from __future__ import annotations

import bdb
import os
import signal
import traceback

from governor.cli.trial.output import note, say
from governor.errors import ConductorError, ExitCode
from governor.failures import HIDDEN


class Signalled(SystemExit):
    """A signal that ends the process; the exit code is that of a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


def end_by_signals() -> None:
    """SIGTERM and SIGHUP leave no files, and show where they came."""
    ours = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() == ours:
            raise Signalled(number)
        signal.signal(number, signal.SIG_DFL)  # a forked child of user code
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, end)


def show(place: str, error: BaseException, *, pdb: bool) -> int:
    """Prints the traceback; the exit code."""
    cause = error.__cause__
    if isinstance(error, ConductorError) and not isinstance(cause, ConductorError | None):
        place, error = error.reason.partition(": ")[0], cause
    if isinstance(error, bdb.BdbQuit):
        note(f"{place}: the debugger was left")
        return ExitCode.INTERRUPTED
    if (text := _fault_of_a_value(error)) is not None:
        say(f"governor: error: {text}", err=True)
        return ExitCode.RUN_ENDED_BADLY
    if isinstance(error, KeyboardInterrupt | Signalled):
        note(f"{place}: {'interrupted' if isinstance(error, KeyboardInterrupt) else error.name}")
        show_traceback(error)
        return ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
    note(f"{place}: it raised")
    show_traceback(error)
    if pdb and error.__traceback__ is not None:
        import pdb as debugger  # noqa: PLC0415, T100  # asked for

        debugger.post_mortem(error.__traceback__)
    return ExitCode.RUN_ENDED_BADLY


def _fault_of_a_value(error: BaseException) -> str | None:
    """The text of an error that was not raised by user code, else None."""
    from governor.tasks.protocol.values import Unserialisable  # noqa: PLC0415  # not for --help

    if isinstance(error, ConductorError):
        return error.reason
    return str(error) if isinstance(error, Unserialisable) else None


def show_traceback(error: BaseException) -> None:
    """Without our own frames."""
    shown = traceback.TracebackException.from_exception(error)
    todo: list[traceback.TracebackException | None] = [shown]
    while todo:
        one = todo.pop()
        if one is not None:
            users = [frame for frame in one.stack if not frame.filename.startswith(HIDDEN)]
            one.stack = traceback.StackSummary.from_list(users)
            todo += [one.__cause__, one.__context__, *(one.exceptions or ())]
    say("".join(shown.format()).rstrip(), err=True)

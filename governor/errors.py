"""Every error of the governor: one root; each names the cause, with ids as attributes.

Each has the exit code of the command line (docs/cli.md). A message tells what is wrong, where, and what to do.
"""

from __future__ import annotations

import copyreg
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages import Fault, Refused
    from transport.errors import TransportError


class ExitCode(IntEnum):
    """Exit codes of `governor`. From 64 on they follow BSD's sysexits.h, 124 is that of timeout(1)."""

    DONE = 0
    RUN_ENDED_BADLY = 1
    USAGE = 2
    NO_SUCH_RUN = 4
    UNREACHABLE = 69
    INTERNAL = 70
    TRY_AGAIN = 75
    NOT_PERMITTED = 77
    BAD_CONFIGURATION = 78
    DEADLINE = 124
    INTERRUPTED = 130


def text_of(error: BaseException) -> str:
    """Its text on one line. The `__str__` of an error of user code may raise."""
    try:
        return " ".join(str(error).split())
    except Exception as broken:  # noqa: BLE001  # as above
        return f"(its text cannot be read: {type(broken).__name__})"


class GovernorError(Exception):
    """Root of all errors that are raised on purpose."""

    exit_code: ExitCode = ExitCode.INTERNAL
    code: str = "internal"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with text and attributes, for pools of processes: constructors take other arguments than the text."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]  # missing in typeshed


class UsageError(GovernorError):
    """The caller asked for something that makes no sense; asking again will not help."""

    exit_code = ExitCode.USAGE
    code = "usage"


class RunFileError(GovernorError):
    """A run file has faults. All of them are in `faults`; `source` names the file."""

    exit_code = ExitCode.BAD_CONFIGURATION
    code = "bad_run_file"

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        lines = [
            f"  {source}{f':{fault.line}' if fault.line else ''}: {fault.path or '(top)'}: {fault.message}"
            for fault in self.faults
        ]
        plural = "" if len(self.faults) == 1 else "s"
        super().__init__("\n".join([f"{source}: {len(self.faults)} fault{plural} in the run file", *lines]))


class ConfigError(GovernorError):
    """The daemon's configuration has faults; `faults` lists them all."""

    exit_code = ExitCode.BAD_CONFIGURATION
    code = "bad_configuration"

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__("\n".join([f"{source}: bad configuration", *(f"  {fault}" for fault in faults)]))


class NoSuchRun(GovernorError):
    """No run has this uid, or several begin with it."""

    exit_code = ExitCode.NO_SUCH_RUN
    code = "no_such_run"

    def __init__(self, uid: str, message: str | None = None) -> None:
        self.uid = uid
        super().__init__(message or f"no run {uid!r}; `governor list` shows the runs of this daemon")


class NotEnded(GovernorError):
    """The run has no result yet."""

    exit_code = ExitCode.TRY_AGAIN
    code = "not_ended"

    def __init__(self, uid: str, state: str = "at work", message: str | None = None) -> None:
        self.uid = uid
        super().__init__(
            message or f"run {uid} has not ended (it is {state}); `governor watch {uid}` waits for its end"
        )


class AlreadyEnded(UsageError):
    """The run has an outcome, which is final."""

    code = "already_ended"

    def __init__(self, uid: str, outcome: str = "", message: str | None = None) -> None:
        self.uid = uid
        super().__init__(message or f"run {uid} has ended already: {outcome}")


class RunEndedBadly(GovernorError):
    """A run failed or was aborted, and the caller asked for an error then. `outcome` is its outcome."""

    exit_code = ExitCode.RUN_ENDED_BADLY
    code = "run_ended_badly"

    def __init__(self, uid: str, outcome: str, reason: str) -> None:
        self.uid = uid
        self.outcome = outcome
        super().__init__(f"run {uid} {outcome}{f': {reason}' if reason else ''}")


class TryAgain(GovernorError):
    """Refused now: draining, stopping, full; the same call may succeed later."""

    exit_code = ExitCode.TRY_AGAIN
    code = "try_again"


class GoingDown(TryAgain):
    """The daemon stops and accepts no more requests; its successor will."""

    code = "going_down"


class NoRoom(TryAgain):
    """The disk is full or mounted read-only: nothing can be recorded."""

    code = "no_room"


class FilesRemoved(TryAgain):
    """Files that the daemon uses were removed or replaced."""

    code = "files_removed"


class AlreadyServed(TryAgain):
    """Another daemon uses this state or runtime directory."""

    code = "already_served"

    def __init__(self, folder: str, pid: int | None, *, kind: Literal["state", "runtime"] = "state") -> None:
        self.folder = folder
        self.pid = pid
        holder = f"pid {pid}" if pid else "another process"
        super().__init__(
            f"the {kind} directory {folder} is in use by {holder}: stop that daemon, or give this one "
            "directories of its own (--state-dir and --runtime-dir)"
        )


class Unreachable(GovernorError):
    """The daemon does not answer at the endpoint; or the broker there does not register a RunGovernor. Where the connection broke, a
    request may have been carried out.
    """

    exit_code = ExitCode.UNREACHABLE
    code = "unreachable"

    def __init__(self, endpoint: str, detail: str = "", *, text: str = "") -> None:
        self.endpoint = endpoint
        super().__init__(text or f"no daemon answers at {endpoint} ({detail}); is `governor serve` running?")


class NoAnswer(GovernorError):
    """The broker accepted the request, and no reply came in time; it may have been carried out."""

    exit_code = ExitCode.DEADLINE
    code = "no_answer"

    def __init__(self, endpoint: str, seconds: float) -> None:
        self.endpoint = endpoint
        self.seconds = seconds
        super().__init__(
            f"the daemon behind {endpoint} did not answer within {seconds:g} s; it is busy or starting, ask again"
        )


class NotPermitted(GovernorError):
    """The operating system refused access to a file or socket."""

    exit_code = ExitCode.NOT_PERMITTED
    code = "not_permitted"


class BadRequest(GovernorError):
    """A request that does not decode: from a client of another version, or another kind of client."""

    exit_code = ExitCode.USAGE
    code = "bad_request"


class ConductorError(GovernorError):
    """A conductor cannot do its work; `reason` is one line for the run's record, a `failures.Reason` where user code is to blame."""

    code = "conductor"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ProcessError(GovernorError):
    """A process could not be started, or survived SIGKILL; `pid` when there is one."""

    code = "process"

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        self.pid = pid
        super().__init__(message)


class ForkserverDied(ProcessError):
    """No child can be started until there is a new forkserver; `pid` is that of the dead one."""


class JournalError(GovernorError):
    """The journal cannot be read or written (full or read-only disk, a failing one, foreign schema)."""

    exit_code = ExitCode.TRY_AGAIN
    code = "journal"


class JournalDamaged(JournalError):
    """The journal's file is damaged: a restart does not help, a person has to decide."""

    exit_code = ExitCode.INTERNAL
    code = "journal_damaged"


class RecordDamaged(GovernorError):
    """A value of one run in the journal is damaged; other runs are not affected."""

    code = "record_damaged"

    def __init__(self, uid: str, place: str, what: str) -> None:
        self.uid = uid
        self.place = place
        self.what = what
        super().__init__(
            f"the record of run {uid} is damaged ({place}: {what}); put a copy of the journal back, or submit its run file "
            "again"
        )


class StepsDamaged(GovernorError):
    """The Parquet file of a phase's steps is damaged."""

    code = "steps_damaged"

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is damaged ({what}); put a copy of the file back, or submit its run file again"
        )


def refusal_of(error: GovernorError) -> Refused:
    """The message for this error; `from_refusal` makes an error of it again."""
    from governor.messages import Refused  # noqa: PLC0415  # an error alone needs no messages

    faults = error.faults if isinstance(error, RunFileError) else ()
    return Refused(code=error.code, message=str(error), exit_code=int(error.exit_code), faults=faults)


def from_transport(error: TransportError, *, endpoint: str) -> GovernorError:  # noqa: PLR0911  # one for each kind
    """The error for a request of the executor that has failed."""
    from governor.messages import SERVICE  # noqa: PLC0415  # as above
    from transport import errors  # noqa: PLC0415  # as above
    from transport.connection import UNKNOWN_KEY  # noqa: PLC0415  # as above

    match error:
        case errors.MalformedFrames() | errors.ClientClosed():
            is_closed = isinstance(error, errors.ClientClosed)
            return UsageError("this Executor was closed: make another one" if is_closed else str(error))
        case errors.ServiceNotFound() if error.service != SERVICE:
            return Unreachable(
                endpoint, text=f"no RunGovernor {error.service!r} serves at {endpoint}; has it ended?"
            )
        case errors.BrokerUnreachable() if error.refused == UNKNOWN_KEY:
            return NotPermitted(
                f"the daemon at {endpoint} does not know the key of this context: `governor keys list`, there, shows those that it knows"
            )
        case errors.BrokerUnreachable():
            return Unreachable(endpoint, str(error))
        case errors.DeadlineExceeded():
            return NoAnswer(endpoint, error.timeout)
        case errors.RequestQueueFull():
            return TryAgain(f"the broker at {endpoint} has no room for another request: {error}")
        case errors.TooLarge():
            return UsageError(f"the request is larger than a broker takes: {error}")
        case errors.RequestNotPermitted():
            return NotPermitted(f"the daemon is not reached through {endpoint}: {error}")
        case errors.RemoteError():
            return GovernorError(f"the daemon failed at this request, its log tells more: {error}")
        case _:
            return Unreachable(endpoint, str(error))


_OF_A_MESSAGE: Final[tuple[type[GovernorError], ...]] = (
    GovernorError,
    UsageError,
    TryAgain,
    GoingDown,
    NoRoom,
    FilesRemoved,
    NotPermitted,
    ConductorError,
    ProcessError,
)
"""The errors that are made of their text alone. A client gets BadRequest as UsageError, JournalError as TryAgain."""


def from_refusal(refused: Refused, *, source: str) -> GovernorError:
    """The error that a daemon's refusal means for the executor. `source` names the run or run file."""
    if refused.code == RunFileError.code:
        return RunFileError(source, refused.faults)
    if refused.code == ConfigError.code:
        first, *faults = refused.message.split("\n")
        return ConfigError(
            first.removesuffix(": bad configuration"), [fault.removeprefix("  ") for fault in faults]
        )
    of_a_run: dict[str, type[NoSuchRun | NotEnded | AlreadyEnded]] = {
        kind.code: kind for kind in (NoSuchRun, NotEnded, AlreadyEnded)
    }
    if refused.code in of_a_run:
        return of_a_run[refused.code](source, message=refused.message)
    known = {kind.code: kind for kind in _OF_A_MESSAGE}
    like: dict[int, type[GovernorError]] = {ExitCode.USAGE: UsageError, ExitCode.TRY_AGAIN: TryAgain}
    kind = known.get(refused.code) or like.get(refused.exit_code, GovernorError)
    error = kind(refused.message)
    error.code = refused.code
    error.exit_code = ExitCode(refused.exit_code)
    return error

"""The process of `governor.run`: the verb `run`, whose caller is a program. `python -m governor.script_process PARENT ARGUMENTS`.

Rules:
1. When the thread that called dies, SIGTERM comes, which aborts the run in order.
2. An error is the last message on standard output. They are in msgpack, each after its length: JSON has no nan and no inf.
3. As in `__main__` the guard stands first, and nothing happens at import.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from governor.processes import prctl
from governor.processes.guard import start_guard


def main() -> None:
    """Runs the verb with the arguments of the command line, and exits with its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # before the run has begun an order would help nothing
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # as of the caller, who had it wait
    prctl.die_with_parent(expected=int(sys.argv[1]), number=signal.SIGTERM)
    start_guard(makes_folder=True)
    import click  # noqa: PLC0415  # as below

    from governor.cli import run  # noqa: PLC0415  # after the guard, which must hold nothing that it does not need
    from governor.cli.rendering import display  # noqa: PLC0415  # as above
    from governor.errors import ExitCode, GovernorError, UsageError, refusal_of  # noqa: PLC0415  # as above
    from governor.journal import disk_reserve  # noqa: PLC0415  # as above

    def refuse(error: GovernorError) -> int:
        display.print_framed(refusal_of(error))
        return error.exit_code

    try:
        code = run.command.main(sys.argv[2:], prog_name="governor run", standalone_mode=False)
    except click.Abort:  # Ctrl-C, while it closes
        code = ExitCode.INTERRUPTED
    except click.ClickException as error:
        code = refuse(UsageError(error.format_message()))
    except GovernorError as error:
        code = refuse(error)
    except OSError as error:
        known = disk_reserve.no_room(Path(error.filename or "a file"), error)
        if known is None:
            raise
        code = refuse(known)
    sys.exit(code)


if __name__ == "__main__":
    main()

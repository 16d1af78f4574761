"""The command line. A verb is imported when it is called, so that each starts fast.

Rules:
1. Results go to standard output, everything else to standard error. `--json` prints one document, or one object a line
   where a verb follows a run.
2. Every `GovernorError` is printed as one ``governor: error: ...`` on standard error, with its own exit code; any other
   error exits with 70, and its traceback is shown with `--debug`.
3. A reader that is gone (``| head``) is no error: further output is dropped.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from governor.errors import ExitCode, GovernorError
from governor.version import __version__

VERBS: Final = {
    "init": "init:command",
    "run": "run:command",
    "check": "check:command",
    "try": "trial.command:command",
    "serve": "serve:command",
    "submit": "submit:submit",
    "watch": "watch:command",
    "status": "questions:status",
    "explain": "questions:explain",
    "list": "questions:list_runs",
    "results": "results:command",
    "report": "report:command",
    "view": "view:command",
    "logs": "logs:command",
    "resume": "submit:resume",
    "pause": "control:pause",
    "continue": "control:go_on",
    "set": "control:set_values",
    "abort": "control:abort",
    "cancel": "control:cancel",
    "requeue": "control:requeue",
    "replay": "replay:command",
    "prune": "prune:command",
    "backup": "service.backup:backup",
    "restore": "service.backup:restore",
    "doctor": "service.doctor:command",
    "install-service": "service.install:install",
    "uninstall-service": "service.install:uninstall",
    "reload": "questions:reload",
    "drain": "control:drain",
    "undrain": "control:undrain",
    "shutdown": "control:shutdown",
    "keys": "network.keys:command",
    "broker": "broker:command",
}
"""Each verb and where its command is, in the order of a new user's first steps."""
LOCAL_VERBS: Final = frozenset(
    (
        "init",
        "check",
        "try",
        "run",
        "serve",
        "backup",
        "restore",
        "doctor",
        "install-service",
        "uninstall-service",
        "keys",
        "broker",
    )
)
"""Those that do their work on this machine, whatever daemon is elsewhere."""


class Verbs(click.Group):
    """A group that loads its verbs on demand and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"governor.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"no such verb {args[0]!r}{f'; did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **more: Any) -> Any:
        try:
            return super().main(*args, **more)
        except OSError as error:  # --help and --version are written before any verb is invoked
            if (full := _no_room(error)) is None:
                raise
            with suppress(OSError):  # standard error is full, too
                print_error(str(full))
            drop_output()
            sys.exit(full.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GovernorError as error:
            from governor.cli import ask  # noqa: PLC0415  # this module is imported by every verb

            print_error(ask.message_of(error, ctx.params.get("broker")))
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            drop_output()
            ctx.exit(ExitCode.DONE)
        except KeyboardInterrupt:
            click.echo("governor: interrupted", err=True)
            ctx.exit(ExitCode.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001  # the last place to give an error its exit code
            if isinstance(error, OSError) and (full := _no_room(error)) is not None:
                print_error(str(full))
                ctx.exit(full.exit_code)
            _print_internal_error(error, debug=bool(ctx.params.get("debug")))
            ctx.exit(ExitCode.INTERNAL)


def _no_room(error: OSError) -> GovernorError | None:
    """The error for a full or read-only disk, else None."""
    from governor.journal import disk_reserve  # noqa: PLC0415  # where it is needed, for every verb starts by importing this

    return disk_reserve.no_room(Path(error.filename or "standard output, or a file,"), error)


def print_error(message: str) -> None:
    """Prints one error for a person, to standard error."""
    from governor.cli.rendering.lines import say  # noqa: PLC0415  # this module is imported by every verb, `lines` by those that print

    say(f"governor: error: {message}", err=True)


def drop_output() -> None:
    """Discards further writes to standard output: its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _print_internal_error(error: Exception, *, debug: bool) -> None:
    text = " ".join(str(error).split())
    print_error(f"internal: {type(error).__name__}{': ' if text else ''}{text}")
    if debug:
        traceback.print_exception(error)
    else:
        click.echo("governor: this is a bug; `governor --debug ...` shows where", err=True)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the run ended badly, 2 usage, 4 no such run, 69 daemon not reachable, 70 internal, "
    "75 refused now, 77 not permitted, 78 bad configuration or run file, 124 deadline, 130 interrupted.",
)
@click.version_option(__version__, prog_name="governor", message="%(prog)s %(version)s")
@click.option(
    "--broker",
    metavar="ENDPOINT",
    help="Where the daemon is. Default: $GOVERNOR_BROKER, else the socket in the first runtime folder that has one.",
)
@click.option(
    "--context",
    metavar="NAME",
    help="A daemon on another machine, by the name or the path of a file with its endpoint and keys. Default: $GOVERNOR_CONTEXT.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
@click.pass_context
def cli(ctx: click.Context, *, broker: str | None, context: str | None, debug: bool) -> None:  # noqa: ARG001  # read from ctx.params
    """Bring an experiment run to exactly one end."""
    if broker is not None and context is not None:
        raise click.UsageError("--broker and --context both say where the daemon is: give one of them")
    if context is not None:
        if (verb := ctx.invoked_subcommand) in LOCAL_VERBS:
            raise click.UsageError(
                f"`governor {verb}` is about this machine, not about one elsewhere: leave --context out"
            )
        os.environ["GOVERNOR_CONTEXT"] = context
    ctx.obj = broker

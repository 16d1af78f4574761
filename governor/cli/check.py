"""`governor check FILE`: every fault of a run file, each with its place. Nothing runs but the import of its entries."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli.ask import json_option
from governor.cli.rendering.lines import counted, say
from governor.errors import ExitCode, RunFileError

if TYPE_CHECKING:
    from governor.messages import Fault
    from governor.run_file.load import Examined


def checked(file: Path, *, here: bool = True) -> Examined:
    """The run file after the full check: its shape, its references, and the import of its entries. If it is to run
    `here`, the keys of its language models must be in the environment.

    Raises:
        RunFileError: with every fault.
    """
    from governor.run_file import check_language_models, entry_check, load  # noqa: PLC0415  # pydantic: 0.2 s, not for --help

    examined = load.examine(file)
    asked = entry_check.of_data(examined.document.data)
    if here:
        examined = examined.with_faults(
            check_language_models.missing_keys(examined.document.data, os.environ)
        )
    examined = examined.with_faults(entry_check.faults(asked, folder=examined.folder))
    examined.run()
    return examined


@click.command("check", short_help="List every fault of a run file.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--schema", is_flag=True, help="Print the JSON schema of run files, for editors, instead.")
@json_option
@click.pass_context
def command(ctx: click.Context, *, file: Path | None, schema: bool, as_json: bool) -> None:
    """List all faults of the run FILE, each with its path and line; exit 78 when there are any."""
    if schema:
        from governor.run_file import load  # noqa: PLC0415  # as in checked

        click.echo(json.dumps(load.schema(), indent=2))
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    try:
        run = checked(file).run()
    except RunFileError as error:
        if not as_json:
            raise
        _document(file, error.faults)
        ctx.exit(ExitCode.BAD_CONFIGURATION)
    if as_json:
        _document(file, ())
        return
    plan = run.to_plan("")
    say(
        f"{file}: no faults; {counted(len(plan.phases), 'phase')}, {counted(len(plan.conductors), 'conductor')}"
    )


def _document(file: Path, faults: tuple[Fault, ...]) -> None:
    listed = [{"path": fault.path, "line": fault.line, "message": fault.message} for fault in faults]
    click.echo(json.dumps({"source": str(file), "ok": not listed, "faults": listed}))

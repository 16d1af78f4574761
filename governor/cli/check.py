"""`governor check FILE`: every fault of a run file, each with its place. Nothing runs but the import of its entries; with
`--build` its environments and agents are built, and play one step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from governor.cli import matrix
from governor.cli.ask import json_option
from governor.cli.rendering.lines import clean, counted, say
from governor.errors import ExitCode, RunFileError

if TYPE_CHECKING:
    from governor.cli.trial.builds import Build
    from governor.messages import Fault
    from governor.run_file.load import Examined
    from governor.run_file.options import Options


def checked(file: Path, *, here: bool = True, options: Options | None = None) -> Examined:
    """The run file after the full check, with all runs of its matrix: its shape, its references, and the import of its entries. If it is to
    run `here`, the keys of its language models must be in the environment. `options` change it.

    Raises:
        RunFileError: with every fault.
    """
    from governor.run_file import cells, check_language_models, entry_check, load  # noqa: PLC0415  # pydantic: 0.2 s, not for --help
    from governor.run_file.check_programs import missing  # noqa: PLC0415  # as above
    from governor.runs import variables  # noqa: PLC0415  # as above

    examined = load.examine(file, options)
    asked = cells.with_entries(entry_check.of_data(examined.document.data), examined.cells)
    given = variables.given(examined)
    if here:
        examined = examined.with_faults(
            check_language_models.missing_keys(examined.document.data, {**os.environ, **given})
        )
    data, folder = examined.document.data, examined.folder
    found = [*missing(data, folder, here=here, cells=[cell.data for cell in examined.cells])]
    found += variables.faults(examined.document.data, folder)
    found += entry_check.faults(asked, folder=folder, variables=given)
    examined = examined.with_faults(cells.in_file(examined.cells, found))
    examined.run()
    return examined


@click.command("check", short_help="List every fault of a run file.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--build",
    is_flag=True,
    help="Then build each environment with its agents, in a process of its own, and play one step.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86400),
    metavar="S",
    help="With --build: the time that one environment with its agents has.  [default: 60]",
)
@matrix.set_option
@matrix.zip_option
@click.option("--schema", is_flag=True, help="Print the JSON schema of run files, for editors, instead.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: Path | None,
    build: bool,
    seconds: float | None,
    sets: tuple[str, ...],
    zips: tuple[str, ...],
    schema: bool,
    as_json: bool,
) -> None:
    """List all faults of the run FILE, each with its path and line; exit 78 when there are any. Of a file with a matrix each run is
    checked, and the first ones are shown.
    """
    if schema:
        from governor.run_file import load  # noqa: PLC0415  # as in checked

        click.echo(json.dumps(load.schema(), indent=2))
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    if seconds is not None and not build:
        raise click.UsageError("--seconds is for --build")
    done: list[Build] = []
    try:
        examined = checked(file, options=matrix.options_of(sets=sets, zips=zips))
        if build:
            examined = _built(examined, done, seconds=seconds, quiet=as_json)
        run = examined.run()
    except RunFileError as error:
        if not as_json:
            _show_tracebacks(done)
            raise
        _document(file, error.faults, done if build else None)
        ctx.exit(ExitCode.BAD_CONFIGURATION)
    if as_json:
        _document(file, (), done if build else None, examined)
        return
    plan = run.to_plan("")
    text = f"{file}: no faults; {counted(len(plan.phases), 'phase')}, {counted(len(plan.conductors), 'conductor')}"
    say(f"{text}; {counted(len(examined.cells), 'run')}" if examined.cells else text)
    matrix.show_cells(examined.cells)


def _built(examined: Examined, done: list[Build], *, seconds: float | None, quiet: bool) -> Examined:
    """With the faults of what is built; each build is appended to `done`."""
    from governor.cli.trial import builds  # noqa: PLC0415  # numpy

    for one in builds.builds(examined.run(), str(examined.folder), seconds=seconds or builds.SECONDS):
        done.append(one)
        if not quiet:
            _show(one)
    return examined.with_faults([(one.place, one.message) for one in done if one.built.fault])


def _show(one: Build) -> None:
    from governor.units import durations  # noqa: PLC0415  # for this alone

    phases = "phase" if len(one.phases) == 1 else "phases"
    agents = "agent" if len(one.agents) == 1 else "agents"
    say(
        f"{phases} {', '.join(one.phases)}: environment {one.environment}, {agents} {', '.join(one.agents)}: "
        f"{'failed' if one.built.fault else 'good'}, {durations.text(one.seconds)}"
    )
    for player, (observation, action) in one.built.spaces.items():
        name = f"player {clean(player)}: " if player else ""
        say(f"  {name}observations {clean(observation)}, actions {clean(action)}")
    if one.built.did:
        say(f"  {', '.join(one.built.did)}")


def _show_tracebacks(done: list[Build]) -> None:
    from governor.cli.rendering.failures import indented  # noqa: PLC0415  # for this alone

    shown = {one.built.traceback: one for one in reversed(done) if 'File "' in one.built.traceback}
    for one in reversed(shown.values()):
        say(clean(one.message), err=True)
        click.echo(f"{indented(one.built.traceback)}\n", err=True)


def _document(
    file: Path, faults: tuple[Fault, ...], done: list[Build] | None, examined: Examined | None = None
) -> None:
    tracebacks = {one.message: one.built.traceback for one in done or () if one.built.traceback}
    listed = [
        {"path": fault.path, "line": fault.line, "message": fault.message}
        | ({"traceback": tracebacks[fault.message]} if fault.message in tracebacks else {})
        for fault in faults
    ]
    document: dict[str, Any] = {"source": str(file), "ok": not listed, "faults": listed}
    if examined is not None and examined.cells:
        document["runs"] = [cell.params for cell in examined.cells]
    if done is not None:
        document["built"] = [_entry(one) for one in done]
    click.echo(json.dumps(document))


def _entry(one: Build) -> dict[str, Any]:
    spaces = {
        player: {"observation": observation, "action": action}
        for player, (observation, action) in one.built.spaces.items()
    }
    return {
        "phases": one.phases,
        "environment": one.environment,
        "agents": one.agents,
        "spaces": spaces,
        "did": one.built.did,
        "fault": one.built.fault or None,
        "seconds": round(one.seconds, 3),
    }

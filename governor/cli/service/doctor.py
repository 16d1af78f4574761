"""`governor doctor`: what this machine, the folders and the daemon have, and what to mend."""

from __future__ import annotations

import json
from pathlib import Path

import click

from governor.cli import ask
from governor.cli.rendering.lines import say
from governor.errors import ExitCode


@click.command("doctor", short_help="Say what a daemon lacks here.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, readable=False),
    help="The daemon's TOML file, as for `serve`.",
)
@click.option(
    "--state-dir", metavar="FOLDER", help="The daemon's state folder. Default: the one that `serve` finds."
)
@ask.json_option
@click.pass_context
def command(ctx: click.Context, *, config_file: Path | None, state_dir: str | None, as_json: bool) -> None:
    """Look at Python and packages, Ray, open files, clock, disk, cgroups, folders, sockets and the daemon's version, and say what to do
    about each fault. Nothing is changed. Exit 0 without faults, 1 with one.

    Run it as the daemon's user on the daemon's machine, with its configuration, whether the daemon works or not.
    """
    from governor.cli.service import examination  # noqa: PLC0415  # not for --help

    findings = examination.examine(config_file, state_dir=state_dir, broker=ctx.obj)
    if as_json:
        click.echo(json.dumps([each._asdict() for each in findings]))
    else:
        width = max(len(each.what) for each in findings)
        for each in findings:
            say(f"{each.level:<5}  {each.what:<{width}}  {each.found}")
            if each.mend:
                say(f"{'':<5}  {'':<{width}}  -> {each.mend}")
    if any(each.level == "fault" for each in findings):
        ctx.exit(ExitCode.RUN_ENDED_BADLY)

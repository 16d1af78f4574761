"""The verbs that hand a run in: `submit`, `resume`. They print its id, and follow it with `--watch` or `--wait`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from governor.cli import ask, groups, matrix
from governor.cli.rendering import display, failures
from governor.cli.rendering.lines import counted, say
from governor.messages import Submitted
from governor.runs.record.code import CHANGED, sentence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.executor import Executor
    from governor.messages import WatchEnd

F = TypeVar("F", bound="Callable[..., object]")


def _options(command: F) -> F:
    for option in (
        ask.json_option,
        click.option("--wait", is_flag=True, help="As --watch, but show the result only."),
        click.option(
            "--watch",
            is_flag=True,
            help="Follow the run to its end and exit by its outcome. Ctrl-C detaches only.",
        ),
        click.option(
            "--key", help="Another request with the same key, of 256 characters at most, gives the same run."
        ),
    ):
        command = option(command)
    return command


@click.command("submit", short_help="Hand in a run, and print its id.")
@click.argument("file", type=click.Path(path_type=Path))
@matrix.set_option
@matrix.zip_option
@matrix.name_option
@matrix.label_option
@click.option(
    "--dry-run", is_flag=True, help="Check and show the runs that would be submitted, and submit none."
)
@_options
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    *,
    file: Path,
    key: str | None,
    sets: tuple[str, ...],
    zips: tuple[str, ...],
    labels: tuple[str, ...],
    name: str | None,
    dry_run: bool,
    **how: bool,
) -> None:
    """Submit the run of FILE to the daemon and print its id. A file with a matrix, or several values of --set, are a group of runs: all of
    them are accepted, or none.
    """
    from governor.cli.check import checked  # noqa: PLC0415  # pydantic: not for --help

    options = matrix.options_of(sets=sets, zips=zips, labels=labels, name=name)
    run = checked(file, here=False, options=options)
    cells = run.cells
    if dry_run:
        if how["as_json"]:
            click.echo(json.dumps([cell.params for cell in cells] or [{}]))
            return
        say(f"{file}: {counted(len(cells) or 1, 'run')}; nothing was submitted")
        matrix.show_cells(cells)
    elif options is not None and run.is_single:
        alone = cells[0]
        _hand_in(
            ctx,
            lambda executor: executor.submit(
                alone.run or run, key=key, folder=run.folder, params=alone.params
            ),
            **how,
        )
    elif cells:
        groups.submit(ctx, lambda executor: executor.submit_group(run, key=key), **how)
    else:
        _hand_in(ctx, lambda executor: executor.submit(run, key=key), **how)


@click.command("resume", short_help="Do what is missing of an earlier run.")
@ask.run_argument
@_options
@click.pass_context
def resume(ctx: click.Context, /, *, uid: str, key: str | None, **how: bool) -> None:
    """Start a new run that keeps what RUN has finished, and print its id.

    Tasks that succeeded and episodes that ended by themselves are kept with their values and files, and so is what the
    agents had learned. All else is done: what failed, timed out, was cancelled or never began. RUN must have ended, and
    stays as it is; a run that finished with nothing missing is refused. A run of `governor run` is resumed by
    `governor run --resume RUN`. Of a group each run that failed or was aborted is resumed, in the same group.
    """
    if groups.is_group(uid):
        groups.resume(ctx, uid, key=key, **how)
        return

    async def begin(executor: Executor) -> str:
        new = await executor.resume(uid, key=key)
        if not how["watch"]:  # which shows it
            async for event in executor.watch(new, follow=False, kinds=(CHANGED,)):
                say(f"the code of the run: {sentence(event.data)}", err=True)
        return new

    _hand_in(ctx, begin, **how)


def _hand_in(
    ctx: click.Context,
    begin: Callable[[Executor], Awaitable[str]],
    *,
    watch: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """`begin` returns the id of the run."""
    submitted: list[str] = []

    async def asked(executor: Executor) -> WatchEnd | None:
        uid = await begin(executor)
        submitted.append(uid)
        if as_json:
            display.print_json(Submitted(uid=uid))
        else:
            click.echo(f"run {uid}" if watch or wait else uid)
        if not (watch or wait):
            return None
        shown = display.choose(as_json=as_json, quiet=wait and not watch)
        end = await ask.follow(executor, uid, display=shown)
        if end is not None and end.outcome != "interrupted":
            result = await executor.result(uid)
            display.show_result(result, as_json=as_json)
            if not as_json:
                await failures.show_end(executor, result)
        return end

    ask.follow_submitted(ctx, asked, submitted, follows=watch or wait)

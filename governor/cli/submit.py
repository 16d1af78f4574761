"""The verbs that hand a run in: `submit`, `resume`. They print its id, and follow it with `--watch` or `--wait`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from governor.cli import ask
from governor.cli.rendering import display, failures
from governor.messages import Submitted

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
@_options
@click.pass_context
def submit(ctx: click.Context, /, *, file: Path, key: str | None, **how: bool) -> None:
    """Submit the run of FILE to the daemon and print its id."""
    from governor.cli.check import checked  # noqa: PLC0415  # pydantic: not for --help

    run = checked(file, here=False)
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
    `governor run --resume RUN`.
    """
    _hand_in(ctx, lambda executor: executor.resume(uid, key=key), **how)


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

    try:
        end = ask.ask(ctx.obj, asked)
    except KeyboardInterrupt:
        if not submitted:
            raise
        ask.detach(ctx, submitted[0])
        return
    if watch or wait:
        ask.finish(ctx, submitted[0], end)

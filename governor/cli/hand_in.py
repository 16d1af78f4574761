"""Shared by `submit` and `resume`: submits a run, prints its id, and follows it with `--watch` or `--wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from governor.cli import ask, display
from governor.messages import Submitted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.executor import Executor
    from governor.messages import WatchEnd

F = TypeVar("F", bound="Callable[..., object]")


def options(command: F) -> F:
    """`--key`, `--watch` and `--wait`."""
    for option in (
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


def hand_in(
    ctx: click.Context,
    submit: Callable[[Executor], Awaitable[str]],
    *,
    watch: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """`submit` returns the id of the run."""
    submitted: list[str] = []

    async def asked(executor: Executor) -> WatchEnd | None:
        uid = await submit(executor)
        submitted.append(uid)
        if as_json:
            display.print_json(Submitted(uid=uid))
        else:
            click.echo(f"run {uid}" if watch or wait else uid)
        if not (watch or wait):
            return None
        shown = display.choose(as_json=as_json, quiet=wait and not watch)
        end = await ask.follow(executor, uid, display=shown)
        await _show_end(executor, uid, end, as_json=as_json)
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


async def _show_end(executor: Executor, uid: str, end: WatchEnd | None, *, as_json: bool) -> None:
    if end is None or end.outcome == "interrupted":
        return
    found = await executor.result(uid)
    if as_json:
        display.print_json(found)
    else:
        from governor.cli import tables  # noqa: PLC0415  # rich: not for --json

        tables.show(tables.result(found))

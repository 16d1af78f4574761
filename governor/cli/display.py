"""Displays of a followed run: live on a terminal, lines in a pipe, JSON for scripts, or none."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

import click
import msgspec

from governor.cli.lines import clean, line, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, Group
    from rich.progress import Progress

    from governor.cli.view import RunView
    from governor.messages import RunEvent, RunResult


Show: TypeAlias = "Callable[[RunEvent, RunView], None]"
"""Shows an event; the view includes it already."""
Display: TypeAlias = AbstractContextManager[Show]
"""Entered before the first event, left after the last one."""


@contextmanager
def terminal(console: Console) -> Iterator[Show]:
    """Ended phases and failures are printed as lines; below them is one live panel."""
    from rich.live import Live  # noqa: PLC0415  # 50 ms, on a terminal only
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    bars = Progress(
        TextColumn("{task.description:<9}", markup=False),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )
    with Live(console=console, refresh_per_second=8, transient=True) as live:

        def show(event: RunEvent, view: RunView) -> None:
            if _is_worth_a_line(event):
                console.print(line(event, view), style=_style(event), markup=False, highlight=False)
            if event.kind == "phase.started":
                for old in bars.task_ids:
                    bars.remove_task(old)
                for what, total in (("episodes", view.episodes), ("tasks", view.tasks)):
                    if total:
                        bars.add_task(what, total=total, note="")
            for bar in bars.tasks:
                done = view.episodes_ended if bar.description == "episodes" else view.tasks_ended
                bars.update(bar.id, completed=done, note=note(bar.description, view))
            live.update(_panel(view, bars))

        yield show


def _panel(view: RunView, bars: Progress) -> Group:
    from rich.console import Group  # noqa: PLC0415  # as above
    from rich.text import Text  # noqa: PLC0415

    head = Text(headline(view), style="bold")
    waits = [Text(f"waits for {clean(view.waits_for)}", style="dim")] if view.waits_for else []
    return Group(head, *([bars] if bars.tasks and view.state == "running" else []), *waits)


def headline(view: RunView) -> str:
    """``frozen-lake 5f3a · running · phase 1/3 train``."""
    parts = [f"{view.name} {view.uid}".strip(), view.state]
    if view.phase is not None and view.state == "running":
        total = f"/{view.phases}" if view.phases else ""
        parts.append(f"phase {view.index + 1}{total} {view.phase} ({view.mode})")
    return clean(" · ".join(parts))


def note(what: str, view: RunView) -> str:
    """The text behind a bar: the mean return of the last episodes, and the number of failures."""
    bad = view.episodes_bad if what == "episodes" else view.tasks_bad
    parts = [f"{bad} ended badly"] if bad else []
    if what == "episodes" and view.mean_return is not None:
        parts.insert(0, f"return {number(view.mean_return)} (last {len(view.returns)})")
    return ", ".join(parts)


def choose(*, as_json: bool, quiet: bool = False) -> Display:
    """The display for the options and for the kind of standard output."""
    if as_json:
        return nullcontext(lambda event, _: print_json(event))
    if quiet:
        return nullcontext(lambda *_: None)
    from governor.cli.tables import console  # noqa: PLC0415  # rich: not for --json

    out = console()
    return terminal(out) if out.is_terminal and not out.is_dumb_terminal else lines()


def lines() -> Display:
    """One line for each event."""
    return nullcontext(lambda event, view: click.echo(line(event, view)))


def print_json(message: msgspec.Struct) -> None:
    """Prints one object on one line. Numbers that JSON does not have (nan, inf) become null."""
    click.echo(msgspec.json.encode(message))


def show_result(found: RunResult, *, as_json: bool) -> None:
    """Prints the result of a run."""
    if as_json:
        print_json(found)
    else:
        from governor.cli import tables  # noqa: PLC0415  # rich: not for --json

        tables.show(tables.result(found))


def _is_worth_a_line(event: RunEvent) -> bool:
    bad_episode = event.data.get("episode", {}).get("outcome") in ("failed", "timed_out", "crashed")
    bad_task = event.data.get("record", {}).get("outcome", "succeeded") != "succeeded"
    unexpected_exit = event.kind == "conductor.exited" and not event.data.get("expected", False)
    return (
        bad_episode
        or bad_task
        or unexpected_exit
        or event.kind in ("phase.ended", "task.attempt_ended", "conductor.failed")
    )


def _style(event: RunEvent) -> str:
    return "green" if event.kind == "phase.ended" else "yellow"

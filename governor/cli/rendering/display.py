"""Displays of a followed run: live on a terminal, lines in a pipe, JSON for scripts, or none.

In a pipe there is a line for each state and phase, for failures, and each `PROGRESS_SECONDS` one with the run's progress.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias

import click
import msgspec

from governor.cli.rendering.lines import clean, failures, line, number, progress, say, time_left, wrapped
from governor.cli.rendering.plot import sparkline
from governor.message_stream import framed as framed_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, Group
    from rich.progress import Progress
    from rich.text import Text

    from governor.cli.rendering.view import RunView
    from governor.messages import RunEvent, RunResult

PROGRESS_SECONDS: Final = 5.0
UNCHANGED_SECONDS: Final = 60.0
"""Between two lines of a progress that has not changed."""
FAILURES: Final = 5
"""The failures of a phase that have a line each. Further ones are counted: a phase may have thousands, all for one reason."""
_BAD: Final = ("failed", "timed_out", "crashed")
SPARKLINE: Final = 60
"""Cells of a sparkline, at most."""
WIDE: Final = 96
"""A terminal of so many columns has room for a bar's note beside it."""

DRAWN_SECONDS: Final = 1 / 8
"""Between two drawings of the live panel because of events of which there may be thousands a second."""
_ATTEMPTS: Final = frozenset({"episode.attempt_ended", "task.attempt_ended"})
_MANY: Final = frozenset({"episode.ended", "task.started", "task.ended"}) | _ATTEMPTS

Show: TypeAlias = "Callable[[RunEvent | None, RunView], None]"
"""Shows an event; the view includes it already. It is called without one (None) where none came for a second."""
Display: TypeAlias = AbstractContextManager[Show]
"""Entered before the first event, left after the last one."""


@contextmanager
def terminal(console: Console) -> Iterator[Show]:
    """Ended parts of phases and failures are printed as lines; below them is one live panel."""
    from rich.live import Live  # noqa: PLC0415  # 50 ms, on a terminal only

    panel = Panel(console)
    with Live(console=console, refresh_per_second=1 / DRAWN_SECONDS, transient=True) as live:
        drawn = 0.0

        def show(event: RunEvent | None, view: RunView) -> None:
            nonlocal drawn
            view.wants_status = True
            if event is not None:
                if (text := printed(event, view, console.width)) is not None:
                    console.print(text)
                panel.update(event, view)
            is_one_of_many = event is not None and event.kind in _MANY
            if not is_one_of_many or time.monotonic() - drawn >= DRAWN_SECONDS:
                live.update(panel.of(view))
                drawn = time.monotonic()

        yield show


def printed(event: RunEvent, view: RunView, width: int) -> Text | None:
    """The line that stays on a terminal above the live panel, for the events that have one."""
    from rich.text import Text  # noqa: PLC0415  # as above

    if event.kind == "part.ended":
        return Text(
            wrapped(line(event, view), width), style="yellow" if event.data.get("failures") else "green"
        )
    return Text(wrapped(_text(event, view), width), style="yellow") if _is_failure(event, view) else None


class Panel:
    """The live part: the run's state, bars of episodes and tasks, how its metrics go, about how long it takes, what its conductors
    use, and what it waits for. No line is wider than the terminal.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # as above

        self._console = console
        self._is_wide = console.width >= WIDE
        self._bars = Progress(
            TextColumn("{task.description:<9}", markup=False),
            BarColumn(bar_width=min(32, max(console.width - 34, 8))),
            MofNCompleteColumn(),
            *([TextColumn("{task.fields[note]}", markup=False)] if self._is_wide else []),
            TimeElapsedColumn(),
            console=console,
        )

    def update(self, event: RunEvent, view: RunView) -> None:
        """Sets the bars; a phase that begins has bars of its own."""
        if event.kind == "phase.started":
            for old in self._bars.task_ids:
                self._bars.remove_task(old)
            for what, total in (("episodes", view.episodes), ("tasks", view.tasks)):
                if total:
                    self._bars.add_task(what, total=total, note="")
        for bar in self._bars.tasks:
            done = view.episodes_ended if bar.description == "episodes" else view.tasks_ended
            self._bars.update(bar.id, completed=done, note=failures(bar.description, view))

    def of(self, view: RunView) -> Group:
        """What is shown for `view`."""
        from rich.console import Group  # noqa: PLC0415  # as above
        from rich.text import Text  # noqa: PLC0415

        def one(text: str, style: str = "") -> Text:
            return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")

        parts: list[Text | Progress] = [one(headline(view), "bold")]
        if self._bars.tasks and view.state == "running":
            parts.append(self._bars)
            notes = [] if self._is_wide else [bar.fields["note"] for bar in self._bars.tasks]
            parts += [one(text) for text in notes if text]
            parts += [one(text) for text in _metrics(view, self._console.width)]
            parts += [one(text) for text in (time_left(view), _conductors(view)) if text]
        parts += [one(f"waits for {view.waits_for}", "dim")] if view.waits_for else []
        return Group(*parts)


def _metrics(view: RunView, width: int) -> list[str]:
    """A line for each metric: its name, its sparkline, the mean of its last values."""
    shown = {name: curve.in_order for name, curve in view.curves.items()}
    names = min(max(map(len, shown), default=0), max(width // 4, 9))
    spark = min(max(width - max(names, 9) - 24, 8), SPARKLINE)
    return [
        f"{clean(name)[:names]:<{max(names, 9)}} {sparkline([window.mean for window in windows], spark)} "
        f"{number(sum(last) / len(last))} (last {len(last)})"
        for name, windows in shown.items()
        if windows and (last := view.recent[name])
    ]


def _conductors(view: RunView) -> str:
    """``agent.walker 98 % CPU 312 MiB · tasks 3 % CPU 85 MiB``: the busiest first, for the end is cut off."""
    from governor.units import sizes  # noqa: PLC0415  # all of `states`, for a terminal alone

    known = view.status.conductors if view.status is not None else ()
    measured = [(one.cpu, one.memory, one.name) for one in known if one.cpu is not None and one.memory]
    return " · ".join(
        f"{name} {cpu:.0%} CPU {sizes.text(memory)}"
        for cpu, memory, name in sorted(measured, key=lambda each: (-round(each[0], 1), each[2]))
    )


def headline(view: RunView) -> str:
    """``frozen-lake 5f3a · running · phase 1/3 train``."""
    parts = [f"{view.name} {view.uid}".strip(), view.state]
    if view.phase is not None and view.state == "running":
        total = f"/{view.phases}" if view.phases else ""
        mode = f" ({view.mode})" if view.episodes else ""
        parts.append(f"phase {view.index + 1}{total} {view.phase}{mode}")
    return clean(" · ".join(parts))


def choose(*, as_json: bool, quiet: bool = False, framed: bool = False) -> Display:
    """The display for the options and for the kind of standard output."""
    if as_json or framed:
        write = print_framed if framed else print_json
        return nullcontext(lambda event, _: None if event is None else write(event))
    if quiet:
        return nullcontext(lambda *_: None)
    from governor.cli.rendering.tables import console  # noqa: PLC0415  # rich: not for --json

    out = console()
    return terminal(out) if out.is_terminal and not out.is_dumb_terminal else lines()


def lines(*, clock: Callable[[], float] = time.monotonic) -> Display:
    """Lines as above; `clock` gives seconds."""
    told_at, told = clock(), 0

    def show(event: RunEvent | None, view: RunView) -> None:
        nonlocal told_at, told
        view.wants_status = True
        if event is not None and _is_news(event, view):
            say(_text(event, view))
        passed = clock() - told_at
        if view.outcome is None and passed >= (PROGRESS_SECONDS if view.seq > told else UNCHANGED_SECONDS):
            say(progress(view))
            told_at, told = clock(), view.seq

    return nullcontext(show)


def print_json(message: msgspec.Struct) -> None:
    """Prints one object on one line. Numbers that JSON does not have (nan, inf) become null."""
    click.echo(msgspec.json.encode(message))


def print_framed(message: msgspec.Struct) -> None:
    """Prints one message in msgpack after its length, as `message_stream` reads it: with numbers that JSON does not have."""
    click.echo(framed_message(msgspec.msgpack.encode(message)), nl=False)


def show_result(found: RunResult, *, as_json: bool, framed: bool = False) -> None:
    """Prints the result of a run."""
    if framed:
        print_framed(found)
    elif as_json:
        print_json(found)
    else:
        from governor.cli.rendering import tables  # noqa: PLC0415  # rich: not for --json

        tables.show(tables.result(found))


def _is_news(event: RunEvent, view: RunView) -> bool:
    """Whether `event` has a line in a pipe: those of the run, its phases and their parts, and failures."""
    return event.kind.startswith(("run.", "phase.", "part.")) or _is_failure(event, view)


def _is_failure(event: RunEvent, view: RunView) -> bool:
    """Whether `event` tells of a failure that has a line of its own."""
    if event.kind.startswith("conductor."):
        unexpected_exit = event.kind == "conductor.exited" and not event.data.get("expected", False)
        return unexpected_exit or event.kind in {"conductor.failed", "conductor.silent"}
    bad_episode = event.kind == "episode.ended" and event.data.get("episode", {}).get("outcome") in _BAD
    bad_task = event.kind == "task.ended" and event.data.get("record", {}).get("outcome") != "succeeded"
    return (bad_episode or bad_task or event.kind in _ATTEMPTS) and view.failures <= FAILURES


def _text(event: RunEvent, view: RunView) -> str:
    is_last = (
        _is_failure(event, view) and not event.kind.startswith("conductor.") and view.failures == FAILURES
    )
    return line(event, view) + ("; further failures of this phase are only counted" if is_last else "")

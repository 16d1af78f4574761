"""Plain lines: of an event, of a run's progress; and how lines are printed."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import click

from governor.messages import finalizing
from governor.output.lines import plain
from governor.runs.record import code
from governor.units import durations, sizes

if TYPE_CHECKING:
    from governor.cli.rendering.view import RunView
    from governor.messages import OutputLine, RunEvent, TimeLeft


def clean(text: object) -> str:
    """One line without control sequences: a message of user code must not control the terminal."""
    return plain(str(text)).strip()


def escaped(json: str) -> str:
    """JSON without characters that control a terminal: JSON itself allows most of them in a text."""
    return json if json.isprintable() else "".join(map(_escaped, json))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def output(line: OutputLine, *, is_short: bool = False) -> str:
    """A line of user code's output with its time and origin; `is_short`: with its conductor and task alone. ``!`` stands for standard error."""
    if line.dropped is not None:
        text = f"… {counted(line.dropped[0], 'line')} ({sizes.text(line.dropped[1])}) dropped"
    else:
        text = plain(line.text) + (" …" if line.partial else "")
    separator = "!" if line.stream == "stderr" else "|"
    source = [plain(line.conductor)]
    if line.task:
        source.append(f"{plain(line.task)}[{line.run or 0}]" + (f".{line.attempt}" if line.attempt else ""))
    if is_short:
        return f"{' '.join(source)} {separator} {text}".rstrip()
    at = time.localtime(line.at)
    day = "" if at[:3] == time.localtime()[:3] else time.strftime("%Y-%m-%d ", at)
    origin = [f"{day}{time.strftime('%H:%M:%S', at)}.{int(line.at % 1 * 1000):03d}", *source]
    if line.evaluation is not None:
        origin.append(f"evaluation {line.evaluation}")
    if line.episode is not None:
        origin.append(f"episode {line.episode}")
    if line.node:
        origin.append(f"on {plain(line.node)}")
    if line.level:
        origin.append(line.level.upper())
    return f"{' '.join(origin)} {separator} {text}".rstrip()


def clean_lines(text: str) -> str:
    """Lines without control sequences, with their indents; tabs become spaces."""
    return "\n".join(map(plain, text.split("\n")))


def say(text: str, *, err: bool = False) -> None:
    """Prints `text`. On a terminal its lines are wrapped at words, and what follows is indented."""
    try:
        width = os.get_terminal_size((sys.stderr if err else sys.stdout).fileno()).columns
    except (
        OSError,
        ValueError,
        AttributeError,
    ):  # replaced, as in a notebook: its stream may have no descriptor
        width = 0
    click.echo(wrapped(text, width) if width else text, err=err)


def wrapped(text: str, width: int) -> str:
    """Each line of `text` in lines of at most `width` cells; a longer word, as a path, stays whole."""
    return "\n".join(_wrapped(one, width) for one in text.split("\n"))


def _wrapped(text: str, width: int) -> str:
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def number(value: object) -> str:
    """A measured figure for a reader: four significant digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return clean(value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def counted(number: int, noun: str) -> str:
    """``1 phase``, ``1,234 phases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def line(event: RunEvent, view: RunView) -> str:
    """`event` as one line; `view` includes it already."""
    return clean(f"{event.kind:<18} {_words(event.kind, event.data, view)}")


def note(what: str, view: RunView) -> str:
    """What is told beside the number of ended `what` ("episodes", "tasks"): the mean return of the last episodes, failures."""
    parts = [failures(what, view)] if failures(what, view) else []
    if what == "episodes" and view.mean_return is not None:
        parts.insert(0, f"return {number(view.mean_return)} (last {len(view.returns)})")
    return ", ".join(parts)


def failures(what: str, view: RunView) -> str:
    """How many "episodes" or "tasks" of the phase ended badly; empty if none."""
    bad = view.episodes_bad if what == "episodes" else view.tasks_bad
    return f"{bad} ended badly" if bad else ""


def time_left(view: RunView) -> str:
    """``about 3min 5s left in train, 12min 0s in the run``, as far as the daemon knows."""
    status = view.status
    if status is None or status.left is None or view.state != "running" or status.phase != view.phase:
        return ""
    return left(status.left, view.phase, phases=view.phases)


def left(found: TimeLeft, phase: str | None, *, phases: int) -> str:
    """As `time_left`, of a run with so many `phases`."""
    run = f", {_about(found.run)} in the run" if found.run is not None and phases > 1 else ""
    return f"{'at most ' if found.at_most else ''}about {_about(found.phase)} left in {phase}{run}"


def _about(seconds: float) -> str:
    return durations.text(max(round(seconds), 1)).replace(".0s", "s")


def progress(view: RunView) -> str:
    """How far the run is, as one line."""
    parts = [view.state]
    if view.phase is not None and view.state == "running":
        counts = {
            "episodes": (view.episodes_ended, view.episodes),
            "tasks": (view.tasks_ended, view.tasks),
        }
        work = [
            ", ".join(filter(None, [f"{ended} of {total} {what}", note(what, view)]))
            for what, (ended, total) in counts.items()
            if total
        ]
        parts = [f"{view.phase}: {'; '.join(work)}"]
    parts += [time_left(view)] if time_left(view) else []
    parts += [f"waits for {view.waits_for}"] if view.waits_for else []
    return clean(f"{'progress':<18} {'; '.join(parts)}")


def _words(kind: str, data: dict[str, Any], view: RunView) -> str:  # noqa: C901, PLR0911, PLR0912  # one case for each kind
    match kind:
        case "run.accepted":
            return f"{data.get('name', '')} as {view.uid}"
        case "run.transition":
            return f"{data.get('from')} -> {data.get('to')} ({data.get('cause', '')})"
        case "run.inherited":
            kept = [
                f"{sum(phase.get(what, 0) for phase in data.get('kept', ()))} {what}"
                for what in ("episodes", "tasks")
            ]
            return f"{' and '.join(kept)} of {data.get('parent')} are kept"
        case "run.code_changed":
            return code.sentence(data)
        case "run.interrupted":
            return str(data.get("reason", ""))
        case "run.restarted":
            gone = data.get("discarded", {})
            return f"anew: {gone.get('episodes', 0)} episodes and {gone.get('tasks', 0)} tasks are discarded"
        case "run.assigned":
            return "a slot is free for it"
        case "run.ended":
            return _with_reason(str(data.get("outcome")), data.get("reason"))
        case "run.pause_requested" | "run.continue_requested":
            return _with_reason("at once" if data.get("hard") else "", data.get("reason")).removeprefix(": ")
        case "run.work_change_requested":
            what = f"task {data['task']}" if data.get("task") else f"episode {data.get('episode')}"
            return _with_reason(f"{data.get('change')} {what}", data.get("reason"))
        case "run.stalled":
            return f"no progress for {durations.text(data.get('seconds', 0))}: {data.get('waits_for', '')}"
        case "flow.requested":
            return f"{view.phase_name(data.get('phase'))} {data.get('reason', '')}"
        case "run.moved":
            return "it makes progress again"
        case "phase.started":
            total = f" of {view.phases}" if view.phases else ""
            work = [f"{data[what]} {what}" for what in ("episodes", "tasks") if data.get(what)]
            mode = f", {data.get('mode')}" if data.get("episodes") else ""
            return f"{data.get('phase')} ({data.get('index', 0) + 1}{total}{mode}): {', '.join(work)}"
        case "phase.ended":
            return f"{data.get('phase')}: {data.get('end')}{_metrics(data)}"
        case "part.finalizing":
            far = finalizing(data.get("steps", 0), data.get("total", 0))
            return f"{view.phase_name(data.get('phase'))} {data.get('part')}, the file of its steps: {far}"
        case "part.ended":
            failures = f", {data['failures']} ended badly" if data.get("failures") else ""
            text = f"{view.phase_name(data.get('phase'))} {data.get('part')}: {data.get('end')}{failures}{_metrics(data)}"
            return _with_reason(text, data.get("first_failure"))
        case "episode.ended":
            return f"{view.phase_name(data.get('phase'))} {_episode(data.get('episode', {}))}"
        case "episode.attempt_ended":
            told = f"attempt {data.get('attempt')} at episode {data.get('index')}: {data.get('outcome')}"
            return _with_reason(f"{view.phase_name(data.get('phase'))} {told}", data.get("reason"))
        case "agent.restored":
            return f"{view.phase_name(data.get('phase'))} {data.get('agent')}: {_restored(data)}"
        case "task.reported":
            last = {name: sums[4] for name, sums in data.get("values", {}).items() if sums[0]}
            return f"{view.phase_name(data.get('phase'))} {_task(data | {'metrics': last})}"
        case "task.started" | "task.attempt_ended" | "task.ended":
            return f"{view.phase_name(data.get('phase'))} {_task(data | data.get('record', {}))}"
        case "failure.inherited":
            of = "episode" if "index" in data.get("item", {}) else "record"
            of_parent = {**data, **data["item"], of: data["item"]}
            return f"of the run before: {_words(data['kind'], of_parent, view)}"
        case _ if kind.startswith("conductor."):
            return _conductor(data)
        case _:
            return " ".join(f"{key}={number(value)}" for key, value in data.items() if key != "at")


def _restored(data: dict[str, Any]) -> str:
    if reason := data.get("reason"):
        return f"not exact: {reason}"
    return f"exact: {data.get('episodes', 0)} episodes with {data.get('steps', 0)} steps are learned again"


def _episode(episode: dict[str, Any]) -> str:
    text = (
        f"episode {episode.get('index')}: return {number(episode.get('value'))}, {episode.get('steps')} steps, "
        f"{durations.text(episode.get('seconds', 0))}, {episode.get('outcome')}"
    )
    if episode.get("evaluation"):
        text = f"evaluation {episode['evaluation']}, {text}"
    return _with_reason(text, episode.get("reason"))


def _task(data: dict[str, Any]) -> str:
    text = f"{data.get('task')}[{data.get('run')}]"
    if "attempts" in data:
        plural = "" if data["attempts"] == 1 else "s"
        text += f": {data.get('outcome')}, {data['attempts']} attempt{plural}, {durations.text(data.get('seconds', 0))}"
    else:
        text += f" attempt {data.get('attempt')}"
        text += f": {data['outcome']}" if "outcome" in data else ""
    return _with_reason(text + _metrics(data), data.get("error"))


def _conductor(data: dict[str, Any]) -> str:
    text = str(data.get("conductor"))
    text += f", pid {data['pid']}" if data.get("pid") else ""
    text += f", exit code {data['exit_code']}" if data.get("exit_code") is not None else ""
    text += f", silent for {durations.text(data['seconds'])}" if data.get("seconds") is not None else ""
    return _with_reason(text, data.get("reason"))


def _metrics(data: dict[str, Any]) -> str:
    """Metrics as text; of a simulation the means alone: the others are in the result."""
    metrics = data.get("metrics") or {}
    if "return_mean" in metrics:
        metrics = {name: metrics[name] for name in ("return_mean", "steps_mean") if name in metrics}
    return "".join(f", {name} {number(value)}" for name, value in metrics.items())


def _with_reason(text: str, reason: object) -> str:
    return f"{text}: {reason}" if reason else text

"""`governor try FILE`: one task or one episode in the foreground of the terminal: in this process, without a daemon and without Ray.

Rules:
1. User code has this process: its prints, `breakpoint()`, standard input and Ctrl-C are as in a script.
2. What it raises is shown with its traceback, without our own frames, and ends with exit code 1. Ctrl-C shows where it was, and
   ends with 130.
3. Of the run file's entries only those that are tried are imported.
4. Nothing is recorded. Notes go to standard error; results, and what user code prints, to standard output.
"""

from __future__ import annotations

import bdb
import contextlib
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.errors import ConductorError, ExitCode, UsageError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.cli.trial_choice import EpisodeTrial, TaskTrial
    from governor.episodes.local.foreground import Step
    from governor.messages import EpisodeOutcome

OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
"""Frames of these files are not shown, nor are those of Python's import."""
_Failure = tuple[str, BaseException]


@click.command("try", short_help="Run one task or episode in the foreground.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--task", metavar="ID", help="Run this task; what it depends on runs before.")
@click.option(
    "--run", "number", metavar="N", type=int, help="Of a task with `repeat`: this run.  [default: 0]"
)
@click.option(
    "--phase", metavar="NAME", help="Play an episode of this phase. With --task: the task of this phase."
)
@click.option(
    "--episode", metavar="N", type=int, help="This one, with the seed that it has in the run.  [default: 0]"
)
@click.option("--steps", is_flag=True, help="Show each step of the episode.")
@click.option(
    "--state",
    "states",
    metavar="[AGENT=]FILE",
    multiple=True,
    help="The agent begins with this state: a file of `agents/` or `checkpoints/` of a run.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="`context.run_folder` of the task. Default: a new one, which is kept if the task writes to it.",
)
@click.option("--pdb", is_flag=True, help="Open the debugger where an exception was raised.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: Path,
    task: str | None,
    number: int | None,
    phase: str | None,
    episode: int | None,
    steps: bool,
    states: tuple[str, ...],
    folder: Path | None,
    pdb: bool,
) -> None:
    """Run one task, or play one episode, of the run FILE here in the terminal: with prints, breakpoints and full tracebacks."""
    from governor import logs  # noqa: PLC0415  # not for --help
    from governor.cli import trial_choice  # noqa: PLC0415  # as above
    from governor.processes import user_folder  # noqa: PLC0415  # as above
    from governor.run_file import check_language_models, load  # noqa: PLC0415  # as above

    if os.environ.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del os.environ["PYTHONBREAKPOINT"]  # of a notebook that has used Ray, whose debugger needs a cluster
    examined = load.examine(file)
    run, home = examined.run(), str(examined.folder)
    if task is None and phase is None:
        listed = "\n".join(f"  {line}" for line in trial_choice.choices(run))
        raise UsageError(f"say which task or episode of {file}:\n{listed}")
    _check_options(
        task, number=number, folder=folder, of_episodes=episode is not None or steps or bool(states)
    )
    if task is not None:
        chosen = trial_choice.task_of(run, home, task, phase=phase, number=number)
        logs.configure(log_format="console", level="info")
        user_folder.enter(home)
        with _run_folder(folder) as run_folder:
            failure = _run_task(chosen, models=run.models, run_folder=run_folder)
        code = ExitCode.DONE
    else:
        played = trial_choice.episode_of(run, home, phase or "", number=episode, states=_files(states))
        if played.speaks:
            examined.with_faults(check_language_models.missing_keys(examined.document.data, os.environ)).run()
        logs.configure(log_format="console", level="info")
        user_folder.enter(home)
        code, failure = _play(played, steps=steps)
    if failure is not None:
        code = _show_failure(*failure, pdb=pdb)
    ctx.exit(code)


def _check_options(task: str | None, *, number: int | None, folder: Path | None, of_episodes: bool) -> None:
    if task is None and (number is not None or folder is not None):
        raise UsageError("--run and --folder are for a --task")
    if task is not None and of_episodes:
        raise UsageError(
            "--episode, --steps and --state are for episodes: give them with --phase, without --task"
        )


def _files(states: tuple[str, ...]) -> Mapping[str, str]:
    """The files by agent, "" without a name; found from the current folder."""
    found = {}
    for given in states:
        agent, _, file = given.rpartition("=")
        path = Path(file).absolute()
        if not path.is_file():
            raise UsageError(f"--state: there is no file {path}")
        found[agent] = str(path)
    return found


@contextlib.contextmanager
def _run_folder(given: Path | None) -> Iterator[Path]:
    """The given folder, or a new one that is removed if it is empty at the end."""
    if given is not None:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="governor-try-"))
    try:
        yield folder
    finally:
        if any(folder.iterdir()):
            _note(f"the task has written to its run folder, {folder}")
        else:
            folder.rmdir()


# -- a task -------------------------------------------------------------------------------------------------


def _run_task(chosen: TaskTrial, *, models: tuple[Any, ...], run_folder: Path) -> _Failure | None:
    """Shows what it returns; or where and what it raised."""
    from rich.pretty import pretty_repr  # noqa: PLC0415  # not for --help

    from governor.cli.lines import number  # noqa: PLC0415  # as above
    from governor.tasks.runner_process.foreground import ForegroundTasks  # noqa: PLC0415  # as above
    from governor.units import durations  # noqa: PLC0415  # as above

    scratch = Path(tempfile.mkdtemp(prefix="governor-try-"))
    place = ""
    try:
        tasks = ForegroundTasks(chosen.command, models=models, run_folder=run_folder, scratch=scratch)
        *before, task = tasks.in_order(chosen.task)
        for needed in before:
            for run in range(needed.repeat):
                place = _name(needed.id, run, needed.repeat)
                _note(f"{place}, on which {chosen.task} depends")
                tasks.run(needed, run)
        place = _name(task.id, chosen.run, task.repeat)
        if before:
            _note(place)
        returned = tasks.run(task, chosen.run)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        if str(run_folder) in text_of(error) and not any(run_folder.iterdir()):
            _note("its run folder is new and empty here: `--folder` gives it that of a run")
        return place, error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.flush()
    width = shutil.get_terminal_size().columns
    click.echo(pretty_repr(returned.value, max_width=width, max_length=20, max_string=1000))
    if returned.metrics:
        click.echo(
            "metrics: " + ", ".join(f"{name} {number(value)}" for name, value in returned.metrics.items())
        )
    if returned.payload:
        click.echo(f"payload: {returned.payload} bytes")
    _note(f"{place} returned after {durations.text(returned.seconds)}")
    _note_timeout(returned.seconds, chosen.timeout, "timeout")
    return None


def _name(task: str, run: int, repeat: int) -> str:
    return f"task {task}, run {run}" if repeat > 1 else f"task {task}"


def _note_timeout(seconds: float, timeout: float | None, key: str) -> None:
    from governor.units import durations  # noqa: PLC0415  # not for --help

    if timeout is not None and seconds > timeout:
        limit = durations.text(timeout)
        _note(f"that is longer than its {key} of {limit}: in a run it would be timed out, here nothing is")


# -- an episode ---------------------------------------------------------------------------------------------


def _play(chosen: EpisodeTrial, *, steps: bool) -> tuple[ExitCode, _Failure | None]:
    """Shows how it ended; or where and what it raised."""
    return _play_text(chosen) if chosen.speaks else _play_numbers(chosen, steps=steps)


def _play_numbers(chosen: EpisodeTrial, *, steps: bool) -> tuple[ExitCode, _Failure | None]:
    from governor.episodes.local.foreground import ForegroundEpisode  # noqa: PLC0415  # not for --help

    folder = Path(tempfile.mkdtemp(prefix="governor-try-"))
    command, place = chosen.command, f"episode {chosen.index}"
    try:
        show = _StepTable() if steps else _show_nothing
        episode = ForegroundEpisode(command, chosen.index, folder=folder, show=show)
        _note_episode(chosen, episode.seed, learns=episode.trains(chosen.index))
        try:
            record = episode.play()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
            where = f", {episode.where}" if episode.where else ""
            return ExitCode.DONE, (f"{place}, step {episode.steps + 1}{where}", error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show_end(record.outcome, record.reason, record.value, record.steps, record.seconds, record.values)
    _note_timeout(record.seconds, chosen.timeout, "episode_timeout")
    return ExitCode.DONE, None


def _play_text(chosen: EpisodeTrial) -> tuple[ExitCode, _Failure | None]:
    from governor.episodes.text import foreground  # noqa: PLC0415  # half a second

    _note_episode(chosen, foreground.seed_of(chosen.command, chosen.index), learns=False)
    try:
        record = foreground.play(chosen.command, chosen.index, show=_Conversation())
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        return ExitCode.DONE, (f"episode {chosen.index}", error)
    _show_end(record.outcome, record.reason, record.total_reward, record.steps, record.seconds, {})
    _note_timeout(record.seconds, chosen.timeout, "episode_timeout")
    failed = record.outcome not in {"terminated", "truncated"}
    return ExitCode.RUN_ENDED_BADLY if failed else ExitCode.DONE, None


def _note_episode(chosen: EpisodeTrial, seed: int, *, learns: bool) -> None:
    command = chosen.command
    evaluated = "an evaluation, " if chosen.index >= command.episodes else ""
    mode = "the agent learns" if learns else "the agent does not learn"
    if chosen.speaks:
        mode = "a language model plays"
    _note(f"episode {chosen.index} of phase {command.name}: {evaluated}seed {seed}, {mode}")


def _show_end(  # noqa: PLR0917  # a line of six words
    outcome: EpisodeOutcome,
    reason: str,
    value: float,
    steps: int,
    seconds: float,
    values: Mapping[str, float],
) -> None:
    from governor.cli.lines import clean, number  # noqa: PLC0415  # not for --help
    from governor.units import durations  # noqa: PLC0415  # as above

    sys.stdout.flush()
    each = f" ({', '.join(f'{name} {number(one)}' for name, one in values.items())})" if values else ""
    text = f"{outcome} after {steps} steps, return {number(value)}{each}, {durations.text(seconds)}"
    click.echo(f"{text}: {clean(reason)}" if reason else text)


def _show_nothing(step: Step) -> None:
    """Without --steps."""


class _StepTable:
    """A line for each step; a header before the first one. A reader that goes away (``| head``) is not the episode's fault."""

    def __init__(self) -> None:
        self._has_header = False

    def __call__(self, step: Step) -> None:
        from governor.cli import drop_output  # noqa: PLC0415  # it imports this module on demand

        try:
            self._print(step)
        except BrokenPipeError:
            drop_output()

    def _print(self, step: Step) -> None:
        player = f"{_short(step.player, 12):<13}" if step.player else ""
        if not self._has_header:
            self._has_header = True
            name = f"{'player':<13}" if step.player else ""
            click.echo(f"{'step':>5}  {name}{'observation':<33} {'action':<14} {'reward':>9}")
        end = "  terminated" if step.terminated else "  truncated" if step.truncated else ""
        seen, done = _short(step.observation, 33), _short(step.action, 14)
        click.echo(f"{step.number:>5}  {player}{seen:<33} {done:<14} {step.reward:>9.4g}{end}")


def _short(value: Any, width: int) -> str:
    """On one line; an array by its first numbers, or by its shape."""
    import numpy as np  # noqa: PLC0415  # not for --help

    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.size > 8:
            return f"{value.dtype}{list(value.shape)}, mean {value.mean():.4g}"[:width]
        value = "[" + " ".join(f"{one:.3g}" for one in value.tolist()) + "]"
    text = str(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


class _Conversation:
    """A `foreground.Show`."""

    def message(self, message: Mapping[str, Any]) -> None:
        sys.stdout.flush()
        click.echo(f"{message['role']}: {message.get('content')}")

    def step(self, number: int, reward: float) -> None:
        sys.stdout.flush()
        click.echo(f"-- step {number}, reward {reward:.4g}")


# -- what user code raises ----------------------------------------------------------------------------------


def _show_failure(place: str, error: BaseException, *, pdb: bool) -> ExitCode:
    """Prints the traceback; the exit code."""
    if isinstance(error, ConductorError) and error.__cause__ is not None:
        place, error = error.reason.partition(": ")[0], error.__cause__
    if isinstance(error, bdb.BdbQuit):
        _note(f"{place}: the debugger was left")
        return ExitCode.INTERRUPTED
    frames = _without_ours(error)
    sys.stdout.flush()
    if isinstance(error, ConductorError):  # the fault of a value, not raised by user code
        click.echo(f"governor: error: {error.reason}", err=True)
        return ExitCode.RUN_ENDED_BADLY
    interrupted = isinstance(error, KeyboardInterrupt)
    _note(f"{place}: {'interrupted' if interrupted else 'it raised'}")
    click.echo("".join(frames.format()).rstrip(), err=True)
    if pdb and not interrupted:
        import pdb as debugger  # noqa: PLC0415, T100  # asked for

        debugger.post_mortem(error.__traceback__)
    return ExitCode.INTERRUPTED if interrupted else ExitCode.RUN_ENDED_BADLY


def _without_ours(error: BaseException) -> traceback.TracebackException:
    shown = traceback.TracebackException.from_exception(error)
    todo: list[traceback.TracebackException | None] = [shown]
    while todo:
        one = todo.pop()
        if one is not None:
            users = [
                frame for frame in one.stack if not frame.filename.startswith((OURS, "<frozen importlib"))
            ]
            one.stack = traceback.StackSummary.from_list(users)
            todo += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return shown


def _note(text: str) -> None:
    sys.stdout.flush()
    click.echo(f"governor: {text}", err=True)

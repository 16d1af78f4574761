"""`governor try FILE`: one task or one episode in the foreground of the terminal: in this process, without a daemon and without Ray.

Rules:
1. User code has this process: its prints, `breakpoint()`, standard input and Ctrl-C are as in a script.
2. What it raises is shown with its traceback, without our own frames, and ends with exit code 1. Ctrl-C shows where it was, and
   ends with 130.
3. Of the run file's entries only those that are tried are imported.
4. Nothing is recorded. Notes go to standard error; results, and what user code prints, to standard output.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.trial import failure, output
from governor.cli.trial.failure import Signalled
from governor.cli.trial.output import note, say
from governor.errors import ConductorError, ExitCode, UsageError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.cli.trial.choice import EpisodeTrial, TaskTrial
    from governor.episodes.local.foreground import ForegroundEpisode, ForegroundStep
    from governor.episodes.text.foreground import ForegroundConversation
    from governor.messages import EpisodeRecord

SCRATCH: Final = "scratch"
"""In a new run folder, for values of tasks."""
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
    from governor.cli.trial import choice  # noqa: PLC0415  # as above
    from governor.processes import prctl, user_folder  # noqa: PLC0415  # as above
    from governor.run_file import check_language_models, load  # noqa: PLC0415  # as above
    from governor.runs import variables  # noqa: PLC0415  # as above

    if os.environ.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del os.environ["PYTHONBREAKPOINT"]  # of a notebook that has used Ray, whose debugger needs a cluster
    examined = load.examine(file)
    run, home = examined.run(), str(examined.folder)
    if task is None and phase is None:
        listed = "\n".join(f"  {line}" for line in choice.choices(run))
        raise UsageError(f"say which task or episode of {file}:\n{listed}")
    _check_options(
        task, number=number, folder=folder, of_episodes=episode is not None or steps or bool(states)
    )
    if pdb and not _has_input():
        raise UsageError("--pdb: there is nobody to ask, standard input is closed or /dev/null")
    examined.with_faults(variables.faults(examined.document.data, examined.folder)).run()
    variables.require_secrets([run])
    given = variables.given(examined)
    if task is not None:
        chosen = choice.task_of(run, home, task, phase=phase, number=number)
    else:
        played = choice.episode_of(run, home, phase or "", number=episode, states=_files(states))
        if played.speaks:
            known = {**os.environ, **given}
            examined.with_faults(check_language_models.missing_keys(examined.document.data, known)).run()
    output.take()
    logs.configure(log_format="console", level="info")
    failure.end_by_signals()
    prctl.adopt_orphans()  # what a program leaves behind ends with it
    user_folder.enter(home, given)
    with (
        contextlib.ExitStack() as stack
    ):  # all is there until the traceback is shown and the debugger is left
        if task is not None:
            raised = _run_task(chosen, stack, models=run.models, given=folder)
            code = int(ExitCode.DONE)
        else:
            code, raised = _play(played, stack, steps=steps)
        if raised is not None:
            code = failure.show(*raised, pdb=pdb)
    ctx.exit(code)


def _has_input() -> bool:
    try:
        return not os.path.samestat(
            os.fstat(0), Path(os.devnull).stat()
        )  # a closed one is replaced by it, too
    except OSError:
        return False


def _check_options(task: str | None, *, number: int | None, folder: Path | None, of_episodes: bool) -> None:
    if task is None and (number is not None or folder is not None):
        raise UsageError("--run and --folder are for a --task")
    if task is not None and of_episodes:
        raise UsageError(
            "--episode, --steps and --state are for episodes: give them with --phase, without --task"
        )


def _files(states: tuple[str, ...]) -> Mapping[str, str]:
    """The files by agent, "" without a name; found from the current folder."""
    from governor.episodes.records import state_file  # noqa: PLC0415  # not for --help

    found = {}
    for given in states:
        agent, _, file = given.rpartition("=")
        path = Path(file).absolute()
        if not path.is_file():
            raise UsageError(f"--state: there is no file {path}")
        try:
            state_file.load(path)
        except ConductorError as error:
            raise UsageError(f"--state: {error.reason}") from error
        found[agent] = str(path)
    return found


@contextlib.contextmanager
def _new_folder(*, keeps: bool) -> Iterator[Path]:
    """A new folder that is removed at the end; with `keeps` only if a task has written to it, beside `SCRATCH`.

    A child that user code has forked does not remove it.
    """
    ours = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="governor-try-"))
    try:
        yield folder
    finally:
        if os.getpid() == ours:
            shutil.rmtree(folder / SCRATCH if keeps else folder, ignore_errors=True)
            if not _is_empty(folder):
                note(f"the task has written to its run folder, {folder}")
            else:
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _is_empty(folder: Path) -> bool:
    """Also if it was removed; `SCRATCH` does not count."""
    try:
        return all(each.name == SCRATCH for each in folder.iterdir())
    except OSError:
        return True


@contextlib.contextmanager
def _closed_after(episode: ForegroundEpisode | ForegroundConversation) -> Iterator[None]:
    """Closes its environment, but not in a child that user code has forked."""
    ours = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == ours:
            try:
                episode.close()
            except (KeyboardInterrupt, Signalled) as error:
                raise click.exceptions.Exit(failure.show("environment.close", error, pdb=False)) from None
            except (Exception, SystemExit) as error:  # noqa: BLE001  # user code's
                note("environment.close: it raised; in a run this has no effect")
                failure.show_traceback(error)


# -- a task -------------------------------------------------------------------------------------------------


def _run_task(
    chosen: TaskTrial, stack: contextlib.ExitStack, *, models: tuple[Any, ...], given: Path | None
) -> _Failure | None:
    """Shows what it returns; or where and what it raised."""
    from rich.pretty import pretty_repr  # noqa: PLC0415  # not for --help

    from governor.cli.rendering.lines import number  # noqa: PLC0415  # as above
    from governor.tasks.runner_process.foreground import ForegroundTasks  # noqa: PLC0415  # as above
    from governor.units import durations  # noqa: PLC0415  # as above

    folder = stack.enter_context(_new_folder(keeps=given is None))
    run_folder = given or folder
    (scratch := folder / SCRATCH).mkdir()
    place = ""
    try:
        tasks = ForegroundTasks(chosen.command, models=models, run_folder=run_folder, scratch=scratch)
        *before, task = tasks.in_order(chosen.task)
        for needed in before:
            for run in range(needed.repeat):
                place = _name(needed.id, run, needed.repeat)
                note(f"{place}, on which {chosen.task} depends")
                tasks.run(needed, run)
        place = _name(task.id, chosen.run, task.repeat)
        if before:
            note(place)
        returned = tasks.run(task, chosen.run)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        if given is None and str(folder) in text_of(error) and _is_empty(folder):
            note("its run folder is new and empty here: `--folder` gives it that of a run")
        return place, error
    width = shutil.get_terminal_size().columns
    say(pretty_repr(returned.value, max_width=width, max_length=20, max_string=1000))
    if returned.metrics:
        say("metrics: " + ", ".join(f"{name} {number(value)}" for name, value in returned.metrics.items()))
    if returned.payload:
        say(f"payload: {returned.payload} bytes")
    note(f"{place} returned after {durations.text(returned.seconds)}")
    _note_timeout(returned.seconds, chosen.timeout, "timeout")
    return None


def _name(task: str, run: int, repeat: int) -> str:
    return f"task {task}, run {run}" if repeat > 1 else f"task {task}"


def _note_timeout(seconds: float, timeout: float | None, key: str) -> None:
    from governor.units import durations  # noqa: PLC0415  # not for --help

    if timeout is not None and seconds > timeout:
        limit = durations.text(timeout)
        note(f"that is longer than its {key} of {limit}: in a run it would be timed out, here nothing is")


# -- an episode ---------------------------------------------------------------------------------------------


def _play(
    chosen: EpisodeTrial, stack: contextlib.ExitStack, *, steps: bool
) -> tuple[ExitCode, _Failure | None]:
    """Shows how it ended; or where and what it raised. The environment is closed with the stack."""
    from governor.cli.trial.conditions import TriedConditions  # noqa: PLC0415  # not for --help

    folder = stack.enter_context(_new_folder(keeps=False))
    conditions = TriedConditions(chosen.command, folder)
    try:
        conditions.build()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        return ExitCode.DONE, (conditions.place, error)
    played = (
        _play_text(chosen, stack, folder)
        if chosen.speaks
        else _play_numbers(chosen, stack, folder, steps=steps)
    )
    if isinstance(played, tuple):
        return ExitCode.DONE, played
    _show_end(played)
    _note_timeout(played.seconds, chosen.timeout, "episode_timeout")
    try:
        conditions.show_answer(played)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        return ExitCode.DONE, (conditions.place, error)
    failed = played.outcome not in {"terminated", "truncated"}
    return ExitCode.RUN_ENDED_BADLY if failed else ExitCode.DONE, None


def _play_numbers(
    chosen: EpisodeTrial, stack: contextlib.ExitStack, folder: Path, *, steps: bool
) -> EpisodeRecord | _Failure:
    from governor.episodes.local.foreground import ForegroundEpisode  # noqa: PLC0415  # not for --help

    show = _StepTable() if steps else _show_nothing
    episode = ForegroundEpisode(chosen.command, chosen.index, folder=folder, show=show)
    stack.enter_context(_closed_after(episode))
    _note_episode(chosen, episode.seed, learns=episode.trains(chosen.index))
    try:
        return episode.play()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        where = f", {episode.where}" if episode.where else ""
        return f"episode {chosen.index}, step {episode.steps + 1}{where}", error


def _play_text(chosen: EpisodeTrial, stack: contextlib.ExitStack, folder: Path) -> EpisodeRecord | _Failure:
    from governor.episodes.text.foreground import ForegroundConversation  # noqa: PLC0415  # half a second

    episode = ForegroundConversation(chosen.command, chosen.index, folder=folder, show=_Conversation())
    stack.enter_context(_closed_after(episode))
    _note_episode(chosen, episode.seed, learns=False)
    try:
        return episode.play()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # user code's
        place = f"episode {chosen.index}"
        if isinstance(error, KeyboardInterrupt) and episode.awaits_model:  # somewhere in libraries
            return f"{place}, while the model was asked", KeyboardInterrupt()
        return place, error


def _note_episode(chosen: EpisodeTrial, seed: int, *, learns: bool) -> None:
    command = chosen.command
    evaluated = "an evaluation, " if chosen.index >= command.episodes else ""
    mode = "the agent learns" if learns else "the agent does not learn"
    if chosen.speaks:
        mode = "a language model plays"
    note(f"episode {chosen.index} of phase {command.name}: {evaluated}seed {seed}, {mode}")


def _show_end(record: EpisodeRecord) -> None:
    from governor.cli.rendering.lines import clean, number  # noqa: PLC0415  # not for --help
    from governor.units import durations  # noqa: PLC0415  # as above

    players = ", ".join(f"{name} {number(one)}" for name, one in record.values.items())
    each = f" ({players})" if players else ""
    value, seconds = number(record.value), durations.text(record.seconds)
    text = f"{record.outcome} after {record.steps} steps, return {value}{each}, {seconds}"
    say(f"{text}: {clean(record.reason)}" if record.reason else text)


def _show_nothing(step: ForegroundStep) -> None:
    """Without --steps."""


class _StepTable:
    """A line for each step; a header before the first one."""

    def __init__(self) -> None:
        self._has_header = False

    def __call__(self, step: ForegroundStep) -> None:
        player = f"{_short(step.player, 12):<13}" if step.player else ""
        if not self._has_header:
            self._has_header = True
            name = f"{'player':<13}" if step.player else ""
            say(f"{'step':>5}  {name}{'observation':<33} {'action':<14} {'reward':>9}")
        end = "  terminated" if step.terminated else "  truncated" if step.truncated else ""
        acted = step.action is not None
        seen, done = (_short(step.observation, 33), _short(step.action, 14)) if acted else ("", "")
        say(f"{step.number:>5}  {player}{seen:<33} {done:<14} {step.reward:>9.4g}{end}")


def _short(value: Any, width: int) -> str:
    text = _in_a_line(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _in_a_line(value: Any) -> str:
    """An array by its numbers, or by its shape; so are those inside of a value."""
    import numpy as np  # noqa: PLC0415  # not for --help

    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_in_a_line(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_in_a_line, value)) + ")"
    if not isinstance(value, np.ndarray):
        return str(value).replace("\n", "\\n")
    if value.ndim != 1 or value.size > 8:
        return f"{value.dtype}{list(value.shape)}" + (f", mean {value.mean():.4g}" if value.size else "")
    return "[" + " ".join(f"{one:.3g}" for one in value.tolist()) + "]"


class _Conversation:
    """A `foreground.Show`."""

    def message(self, message: Mapping[str, Any]) -> None:
        say(f"{message['role']}: {message.get('content')}")

    def step(self, number: int, reward: float) -> None:
        say(f"-- step {number}, reward {reward:.4g}")

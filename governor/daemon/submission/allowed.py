"""Which code a run may name, where the configuration restricts it (`[entries] allow`).

Rules:
1. Each entry, call and wrapper of a run must match a pattern. So must each program, by its first word behind ``command:``, and each
   environment variable that the run sets, by its name behind ``env:``. What is looked at is the run that would be played: each cell of a
   matrix, and the run as a change leaves it. `params` and `args` are for the code that is named.
2. A pattern is ``module:name``. In front of the colon ``*`` stands for any text, behind it for one name: a name behind a dot may be
   anything that the module imports. Ids of Gymnasium, language models and addresses are no names of Python: there ``*`` stands for more.
3. A program is told by its path, or by a name that the daemon's PATH leads to: nothing else may decide which one it is.
4. Nothing is imported from the folder of the run file, which could have a module of any name: the run has an empty folder of its own.
5. A change of an earlier run that leaves all of this as it was, with its arguments, is allowed.
"""

from __future__ import annotations

import re
import shutil
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from governor.episodes.text.entries import is_language_model, is_over_http
from governor.errors import NotPermitted
from governor.units import placeholders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from governor.run_file.model import ConductorsSection, Run
    from governor.run_file.phase_model import TaskSection

Kind: TypeAlias = Literal["", "command:", "env:"]
EMPTY: Final = "empty"
"""The folder, below the state folder, that such runs get a copy of."""
PROGRAM: Final = "command:"
VARIABLE: Final = "env:"
ALL: Final = "*"
GYMNASIUM: Final = "gymnasium:"
NAMED: Final = 5
"""Faults in a message."""
_ANY: Final = ".*"
_NO_COLON: Final = "[^:]*"
_ONE_NAME: Final = "[^.:]*"
_OF_TASKS: Final = ("call", "command", "args", "cwd", "env", "stdin")
_OF_RUNS: Final = ("env", "env_file", "secrets", "conductors", "hooks")


class Named(NamedTuple):
    """What a run names at `place`. `star`: what ``*`` stands for behind the colon of a pattern; None: for nothing. `fault`: why no
    pattern but ``*`` alone allows it.
    """

    place: str
    text: str
    kind: Kind = ""
    star: str | None = _ONE_NAME
    fault: str = ""


class AllowedEntries:
    """`patterns` returns what is allowed now; None: all."""

    def __init__(self, state_dir: Path, patterns: Callable[[], Sequence[str] | None]) -> None:
        self._empty = state_dir / EMPTY
        self._patterns = patterns

    @property
    def restricts(self) -> bool:
        """Whether it is not everything that is allowed."""
        return self._patterns() is not None

    def empty_folder(self) -> str:
        """A folder without anything, to be copied. Blocks. Raises OSError."""
        if _has_files(self._empty):
            shutil.rmtree(self._empty)
        self._empty.mkdir(mode=0o500, exist_ok=True)
        return str(self._empty)

    def require(self, *runs: Run, folder: str | None = None) -> None:
        """Raises NotPermitted with what is not allowed. `folder` is that of an earlier run: a copy of its own, without files. Blocks."""
        patterns = self._patterns()
        if patterns is None:
            return
        faults = dict.fromkeys(
            fault for run in runs for each in named(run) if (fault := _fault(each, patterns))
        )
        if folder is not None and any(run.code != "snapshot" for run in runs):
            faults[f"its code is from {folder}, and it was submitted when that was allowed"] = None
        elif folder is not None and _has_files(Path(folder)):
            faults[f"it would import from {folder}, where there are files"] = None
        if faults:
            more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
            told = "; ".join([*faults][:NAMED]) + more
            raise NotPermitted(
                f"this daemon restricts which code runs may name ([entries] allow): {told}. Allowed: {', '.join(patterns) or 'nothing'}"
            )

    def require_change(self, before: Run, after: Run, *, folder: str) -> None:
        """Of an earlier run with this folder. Raises NotPermitted for code that is not allowed, if the change is one of code. Blocks."""
        if self.restricts and _code_of(before) != _code_of(after):
            self.require(after, folder=folder)


def _has_files(folder: Path) -> bool:
    """One that must not be looked into counts."""
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _code_of(run: Run) -> Any:
    """All that decides which code runs, and on what."""
    data = run.raw()
    tasks = [[{key: task[key] for key in _OF_TASKS} for task in phase["tasks"]] for phase in data["phases"]]
    rules = [
        [(rule["entry"], rule["params"]) for rule in phase["until"] if rule["entry"]]
        for phase in data["phases"]
    ]
    return [data[key] for key in _OF_RUNS], tasks, rules


def _fault(one: Named, patterns: Sequence[str]) -> str:
    if ALL in patterns:
        return ""
    if one.fault:
        return f"{one.place}: {one.text} {one.fault}"
    for each in patterns:
        if _kind(each) == one.kind and _pattern(each.removeprefix(one.kind), one.star).fullmatch(one.text):
            return ""
    return f"{one.place}: {one.kind}{one.text}"


def _kind(pattern: str) -> Kind:
    if pattern.startswith(PROGRAM):
        return PROGRAM
    return VARIABLE if pattern.startswith(VARIABLE) else ""


@lru_cache(maxsize=1024)
def _pattern(text: str, star: str | None) -> re.Pattern[str]:
    """`star` as in `Named`. What has no colon is a program or a variable."""
    module, colon, name = text.partition(":")
    if not colon:
        return re.compile(_wild(text, _ANY), re.DOTALL)
    if star is None:
        return re.compile(f"{_wild(module, _NO_COLON)}:{re.escape(name)}", re.DOTALL)
    return re.compile(f"{_wild(module, _NO_COLON)}:{_wild(name, star)}", re.DOTALL)


def _wild(text: str, star: str) -> str:
    return star.join(map(re.escape, text.split("*")))


def named(run: Run) -> Iterator[Named]:
    """All that a run names, in the order of its file."""
    yield from _variables(run.env, "env")
    yield from _variables(run.secrets, "secrets")
    if run.env_file is not None:
        yield Named("env_file", run.env_file, fault="can set any variable")
    yield from _of_conductors(run.conductors)
    for index, phase in enumerate(run.phases):
        for number, rule in enumerate(phase.until):
            if rule.entry is not None:
                yield Named(f"phases[{index}].until[{number}].entry", rule.entry)
        for number, task in enumerate(phase.tasks):
            yield from _of_task(task, f"phases[{index}].tasks[{number}]")
    for name in type(run.hooks).model_fields:
        hook = getattr(run.hooks, name)
        if hook is not None and hook.command is not None:
            yield _program(hook.command, f"hooks.{name}")


def _of_conductors(conductors: ConductorsSection) -> Iterator[Named]:
    for name, environment in conductors.environments.items():
        place = f"conductors.environments.{name}"
        yield _entry(f"{place}.entry", environment.entry, is_address=is_over_http(environment.entry))
        for number, wrapper in enumerate(environment.wrappers):
            yield Named(f"{place}.wrappers[{number}].entry", wrapper.entry)
    for name, agent in conductors.agents.items():
        place = f"conductors.agents.{name}.entry"
        yield _entry(place, agent.entry, is_address=is_language_model(agent.entry))
    for name, service in conductors.services.items():
        place = f"conductors.services.{name}"
        yield _program(service.command, f"{place}.command", cwd=service.cwd)
        yield from _variables(service.env, f"{place}.env")


def _of_task(task: TaskSection, place: str) -> Iterator[Named]:
    if task.call is not None:
        is_plain = not task.call.startswith(GYMNASIUM)  # whose `register` makes an id of anything
        yield Named(f"{place}.call", task.call, star=_ONE_NAME if is_plain else None)
    if task.command is not None:
        yield _program(task.command, f"{place}.command", cwd=task.cwd)
    yield from _variables(task.env, f"{place}.env")


def _entry(place: str, entry: str, *, is_address: bool) -> Named:
    """Of an environment or an agent; `is_address`: of text environments, or a language model."""
    if is_address:
        return Named(place, entry, star=_ANY)
    return Named(place, entry, star=_NO_COLON if entry.startswith(GYMNASIUM) else _ONE_NAME)


def _program(command: Sequence[str], place: str, *, cwd: str | None = None) -> Named:
    word, fault = command[0], ""
    path = PurePosixPath(word)
    if any(placeholders.names(word)):
        fault = "is known only when it runs"
    elif "/" not in word and cwd is not None:
        fault = "may be a file of its cwd: write an absolute path"
    elif ".." in path.parts or ("/" in word and not path.is_absolute()):
        fault = "is no absolute path without '..'"
    return Named(place, word, PROGRAM, _ANY, fault)


def _variables(names: Mapping[str, object], place: str) -> Iterator[Named]:
    for name in names:
        yield Named(place, name, VARIABLE, _ANY)

"""Which code a run may name, where the configuration restricts it (`[entries] allow`).

Rules:
1. Each entry, call and wrapper of a run must match a pattern, and each program ``command:`` with its first word. What is looked at is the run
   that would be played: each cell of a matrix, and the run as a change leaves it. What stands in `params` and `args` is for the code that is
   named.
2. A pattern is ``module:name``. In front of the colon ``*`` stands for any text, behind it for one name: behind a dot is what a module has
   imported, and so anything. Ids of Gymnasium, language models and addresses are no names of Python: there ``*`` stands for more.
3. A program is told by its path, or by a name that the daemon's PATH leads to: nothing else may decide which one it is.
4. Nothing is imported from the folder of the run file, which could have a module of any name: the run has an empty folder.
5. Variables by which Python, the loader, a shell or Ray run other code are refused, and so is an `env_file`, which may have them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from governor.episodes.text.entries import is_language_model, is_over_http
from governor.errors import NotPermitted
from governor.units import placeholders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from governor.run_file.model import ConductorsSection, Run
    from governor.run_file.phase_model import TaskSection

EMPTY: Final = "empty"
"""The folder, below the state folder, of runs that have none of their own."""
PROGRAM: Final = "command:"
GYMNASIUM: Final = "gymnasium:"
NAMED: Final = 5
"""Faults in a message."""
_LOADING: Final = re.compile(r"(PYTHON|LD_|RAY_).*|PATH|HOME|ENV|BASH_ENV|IFS")
_ANY: Final = ".*"
_NO_COLON: Final = "[^:]*"
_ONE_NAME: Final = "[^.:]*"


class Named(NamedTuple):
    """What a run names at `place`. `rest`: what ``*`` stands for behind the colon of a pattern; "" for nothing. `fault`: why no
    pattern allows it.
    """

    place: str
    text: str
    rest: str = _ONE_NAME
    fault: str = ""


class AllowedEntries:
    """`patterns` returns what is allowed now; None: all."""

    def __init__(self, state_dir: Path, patterns: Callable[[], Sequence[str] | None]) -> None:
        self._empty = state_dir / EMPTY
        self._patterns = patterns

    def folder(self, given: str) -> str:
        """The folder of a run, instead of the `given` one where that counts for nothing. Blocks. Raises OSError."""
        if self._patterns() is None:
            return given
        self._empty.mkdir(mode=0o500, exist_ok=True)
        return str(self._empty)

    def require(self, *runs: Run, before: Run | None = None, folder: str | None = None) -> None:
        """Of an earlier run the `folder` that it has; of a change the run `before`, whose code may stay. Blocks. Raises NotPermitted with
        what is not allowed.
        """
        patterns = self._patterns()
        if patterns is None:
            return
        known = () if before is None else {*named(before)}
        faults = dict.fromkeys(
            fault
            for run in runs
            for each in named(run)
            if each not in known and (fault := _fault(each, patterns))
        )
        if folder is not None and _has_code(Path(folder)):
            faults[f"its code is from {folder}, and it was submitted when that was allowed"] = None
        if faults:
            more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
            told = "; ".join([*faults][:NAMED]) + more
            raise NotPermitted(
                f"this daemon restricts which code runs may name ([entries] allow): {told}. Allowed: {', '.join(patterns) or 'nothing'}"
            )


def _has_code(folder: Path) -> bool:
    """One that must not be looked into counts."""
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _fault(one: Named, patterns: Sequence[str]) -> str:
    if one.fault:
        return f"{one.place}: {one.text} {one.fault}"
    if any(_pattern(each, one.rest).fullmatch(one.text) for each in patterns):
        return ""
    return f"{one.place}: {one.text}"


@lru_cache(maxsize=1024)
def _pattern(text: str, rest: str) -> re.Pattern[str]:
    """`rest` as in `Named`. The pattern ``*`` allows everything."""
    module, colon, name = text.partition(":")
    if not colon:
        return re.compile(_ANY if text == "*" else r"(?!)", re.DOTALL)
    if "*" in name and not rest:
        return re.compile(r"(?!)")
    return re.compile(f"{_wild(module, _NO_COLON)}:{_wild(name, rest)}", re.DOTALL)


def _wild(text: str, star: str) -> str:
    return star.join(map(re.escape, text.split("*")))


def named(run: Run) -> Iterator[Named]:
    """All that a run names, in the order of its file."""
    yield from _variables(run.env, "env")
    yield from _variables(run.secrets, "secrets")
    if run.env_file is not None:
        yield Named("env_file", run.env_file, fault="can have other code run")
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
        yield Named(f"{place}.call", task.call, _ONE_NAME if is_plain else "")
    if task.command is not None:
        yield _program(task.command, f"{place}.command", cwd=task.cwd)
    yield from _variables(task.env, f"{place}.env")


def _entry(place: str, entry: str, *, is_address: bool) -> Named:
    """Of an environment or an agent; `is_address`: of text environments, or a language model."""
    if is_address:
        return Named(place, entry, _ANY)
    return Named(place, entry, _NO_COLON if entry.startswith(GYMNASIUM) else _ONE_NAME)


def _program(command: Sequence[str], place: str, *, cwd: str | None = None) -> Named:
    word, fault = command[0], ""
    path = PurePosixPath(word)
    if any(placeholders.names(word)):
        fault = "is known only when it runs"
    elif "/" not in word and cwd is not None:
        fault = "may be a file of its cwd: write an absolute path"
    elif ".." in path.parts or ("/" in word and not path.is_absolute()):
        fault = "is no absolute path without '..'"
    return Named(place, f"{PROGRAM}{word}", _ANY, fault)


def _variables(names: Mapping[str, object], place: str) -> Iterator[Named]:
    for name in names:
        if _LOADING.fullmatch(name):
            yield Named(place, name, fault="can have other code run")

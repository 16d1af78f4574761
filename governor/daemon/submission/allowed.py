"""Which code a run may name, where the configuration restricts it (`[entries] allow`).

Rules:
1. Every `entry`, `call` and wrapper must match a pattern, and every program ``command:`` with its first word: in whatever way it is handed
   in, with a submit, a matrix, a change or a resume. What stands in `params` and `args` is for the code that is named.
2. Nothing is imported from the folder of the run file, which could have a module of any name: the run has an empty folder.
3. Variables that have Python or the loader run other code are refused, and so is an `env_file`, which may have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.errors import NotPermitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EMPTY: Final = "empty"
"""The folder, below the state folder, of runs that have none of their own."""
PROGRAM: Final = "command:"
NAMED: Final = 5
"""Faults in a message."""
_CODE: Final = frozenset({"entry", "call"})
_DATA: Final = frozenset({"params", "args", "labels", "secrets"})
_LOADING: Final = ("PYTHON", "LD_")


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

    def require(self, data: Mapping[str, object], *, folder: str | None = None) -> None:
        """Of a run file, or values by their paths; and of an earlier run the `folder` that it has. Blocks. Raises NotPermitted with what
        is not allowed.
        """
        patterns = self._patterns()
        if patterns is None:
            return
        faults = [fault for path, text in named(data) if (fault := _fault(path, text, patterns))]
        if folder is not None and _has_code(Path(folder)):
            faults.append(f"its code is from {folder}, and it was submitted when that was allowed")
        if faults:
            more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
            told = "; ".join(faults[:NAMED]) + more
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


def _fault(path: str, text: str, patterns: Sequence[str]) -> str:
    if path.rpartition(".")[2] in ("env", "env_file"):
        return f"{path}: {text}"
    return "" if any(fnmatchcase(text, each) for each in patterns) else f"{path}: {text}"


def named(data: object, path: str = "") -> Iterator[tuple[str, str]]:
    """What a run file names, with its place; programs with `PROGRAM` in front of their first word. Keys may be paths with dots."""
    if isinstance(data, list | tuple):
        for number, each in enumerate(data):
            yield from named(each, f"{path}[{number}]")
        return
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        place = f"{path}.{key}" if path else str(key)
        parts = str(key).split(".")
        if parts[0].startswith("x-") or _DATA.intersection(parts):
            continue
        yield from _of_key(parts, value, place)


def _of_key(parts: list[str], value: object, place: str) -> Iterator[tuple[str, str]]:
    kind = parts[-1]
    if kind in _CODE:
        yield from ((place, text) for text in _texts(value))
    elif kind == "wrappers":
        yield from ((place, text) for text in _texts(value))
        yield from named(value, place)
    elif kind == "command":
        yield from _programs(value, place)
    elif kind == "hooks" or "hooks" in parts:
        yield from _of_hooks(value, place)
    elif kind == "env":
        for name in value if isinstance(value, Mapping) else ():
            if str(name).startswith(_LOADING):
                yield place, f"{name} can have other code run"
    elif kind == "env_file":
        if value is not None:
            yield place, "a file of variables can have other code run"
    else:
        yield from named(value, place)


def _texts(value: object) -> Iterator[str]:
    """A text, or those of a list, as a matrix has them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _programs(value: object, place: str) -> Iterator[tuple[str, str]]:
    """A command, or those of a list of commands."""
    if isinstance(value, list | tuple) and value:
        if isinstance(value[0], str):
            yield place, f"{PROGRAM}{value[0]}"
        else:
            for each in value:
                yield from _programs(each, place)


def _of_hooks(value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key == "command" or isinstance(each, list | tuple):
                yield from _programs(each, f"{place}.{key}")
            else:
                yield from _of_hooks(each, f"{place}.{key}")
    else:
        yield from _programs(value, place)

"""Finds modules beside a run file that conductors can't import, because another module has their name.

Rules:
1. A conductor has all modules that the forkserver imported before the run file's folder was on the path
   (`forkserver.PRELOAD`, and Ray's: whether a conductor has these depends on the runs before it). Modules of the standard library and of this project are never replaced, loaded or not.
2. Those imports take seconds: they are done here only where a module of the folder has the name of another one.
3. If both names lead to the same file (a folder that is on the path twice, or is installed), nothing is shadowed.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OURS: Final = frozenset({"governor", "states", "transport"})
KEPT: Final = sys.stdlib_module_names | OURS


class Shadowing:
    """Of the modules in one folder. Create it before the folder is on the path: it imports what a conductor has."""

    def __init__(self, folder: Path) -> None:
        self.imported = ""
        """Which shadowed module a module of the folder has imported (see `watch`); set it to "" to continue."""
        self._files = dict(_modules_of(folder))
        path = [each for each in sys.path if Path(each).resolve() != folder.resolve()]
        self._others = self._find_others(path)

    def fault(self, module: str) -> str:
        """Why a conductor would import another `module` than that of the folder; "" where it would not."""
        name = module.partition(".")[0]
        return f"module {name!r} is {self._told(name)}" if name in self._others else ""

    def watch(self) -> None:
        """From now on also checks the imports of the folder's own modules."""
        do_import = builtins.__import__

        def watched(
            name: str,
            globals: Mapping[str, Any] | None = None,  # noqa: A002  # its signature
            locals: Mapping[str, Any] | None = None,  # noqa: A002  # as above
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            importer = str((globals or {}).get("__name__"))
            top = name.partition(".")[0]
            ours = importer.partition(".")[0] in self._files.keys() - self._others.keys()
            if not level and top in self._others and ours:
                self.imported = self.imported or (
                    f"module {importer!r} imports {top!r}, which is {self._told(top)}"
                )
            return do_import(name, globals, locals, fromlist, level)

        builtins.__import__ = watched

    def _told(self, name: str) -> str:
        return f"{self._others[name]} in a conductor, not {self._files[name]}: give that file another name"

    def _find_others(self, path: list[str]) -> dict[str, str]:
        """The places of the modules that a conductor has instead, by their names."""
        specs = {name: PathFinder.find_spec(name, path) for name in self._files}
        doubtful = [
            name
            for name, spec in specs.items()
            if (spec is not None or name in KEPT) and _holds_code(self._files[name])
        ]
        if doubtful:
            _import_as_conductors_do()
        others = {}
        for name in doubtful:
            if name in OURS:
                import_module(name)  # an editable installation has it nowhere on the path
            if name in sys.modules or name in KEPT:
                spec = getattr(sys.modules.get(name), "__spec__", None) or specs[name]
                origin = getattr(spec, "origin", None)
                if not self._is_same(name, origin):
                    others[name] = (
                        origin if origin not in (None, "built-in", "frozen") else "built into Python"
                    )
        return others

    def _is_same(self, name: str, origin: str | None) -> bool:
        file = self._files[name]
        return origin is not None and Path(origin).resolve() in (
            file.resolve(),
            file.resolve() / "__init__.py",
        )


def _import_as_conductors_do() -> None:
    from governor.processes.forkserver import PRELOAD, PRELOAD_RAY  # noqa: PLC0415  # multiprocessing

    for module in (*PRELOAD, *PRELOAD_RAY):
        with contextlib.suppress(Exception):  # a conductor does without it, too
            import_module(module)


def _modules_of(folder: Path) -> Iterator[tuple[str, Path]]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # no import finds anything there either
        return
    for path in inside:
        if path.suffix == ".py" or (path.name.isidentifier() and path.is_dir()):
            yield path.stem, path


def _holds_code(path: Path) -> bool:
    """Whether it is a module or a package: Python prefers any module to a folder without ``__init__.py``."""
    return path.suffix == ".py" or (path / "__init__.py").is_file()

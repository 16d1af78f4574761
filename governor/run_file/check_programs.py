"""Checks the tasks and services that run programs: their placeholders, and whether program, script and folders are there.

A part of `governor.run_file.check`: takes plain data, where that is sound; returns paths and messages.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from governor.errors import ProcessError
from governor.processes import program
from governor.run_file.plain_data import items, mapping
from governor.run_file.services import PREFIX
from governor.tasks.runner_process.program import KNOWN
from governor.units import placeholders
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from governor.units.sections import Path as Place

OF_SERVICES: Final = ("port", "run", "run_folder", "python")
"""Placeholders in the section of a service."""
PYTHON: Final = "{python}"
_INTERPRETERS: Final = re.compile(r"(python|pypy)[\d.]*|(ba|da|z|k)?sh|perl|ruby|node|Rscript|julia")
"""What runs the script that its first argument names."""


class _Section(NamedTuple):
    """A section with a `command`: a task, or a service."""

    place: Place
    section: Mapping[str, Any]
    known: tuple[str, ...]
    """Placeholders that are no `args`."""


def _sections(data: object) -> Iterator[_Section]:
    services = mapping(mapping(mapping(data).get("conductors")).get("services"))
    for name, service in services.items():
        yield _Section(("conductors", "services", name), mapping(service), OF_SERVICES)
    for index, phase in enumerate(items(mapping(data).get("phases"))):
        for number, task in enumerate(items(mapping(phase).get("tasks"))):
            yield _Section(("phases", index, "tasks", number), mapping(task), KNOWN)


def faults(data: object) -> Iterator[tuple[Place, str]]:
    """Of the placeholders of a run given as plain data; those of services are checked by `services`."""
    for place, section, known in _sections(data):
        if section.get("command") is None:
            continue
        args = mapping(section.get("args"))
        unused = dict.fromkeys(args)
        for key, text in _texts(section):
            for name in placeholders.names(text):
                unused.pop(name, None)
                if name not in args and name not in known and not name.startswith(PREFIX):
                    yield (*place, *key), _unknown(name, [*args, *known])
        for name in unused:
            yield (
                (*place, "args", name),
                f"is used nowhere: write {{{name}}} in 'command', 'env', 'cwd', 'stdin' or 'result'",
            )


def _unknown(name: str, known: list[str]) -> str:
    hint = suggestion(name, known) or f"; there is {', '.join(known)}"
    return f"unknown placeholder {{{name}}}{hint} (the text {{{name}}} is written {{{{{name}}}}})"


def _texts(section: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """The texts that may have placeholders, with their places."""
    for number, word in enumerate(items(section.get("command"))):
        if isinstance(word, str):
            yield ("command", number), word
    for name, value in mapping(section.get("env")).items():
        if isinstance(value, str):
            yield ("env", name), value
    for key in ("cwd", "stdin", "result"):
        if isinstance(section.get(key), str):
            yield (key,), section[key]
    ready = mapping(section.get("ready"))
    if isinstance(ready.get("http"), str):
        yield ("ready", "http"), ready["http"]


def missing(
    data: object, folder: Path, *, here: bool, cells: Iterable[object] = ()
) -> Iterator[tuple[Place, str]]:
    """What the programs of a run, given as plain data, need and is not there. `here`: they run with this process' PATH. Of `cells`, the
    runs of its matrix, what differs; such a place begins with the number of the cell.
    """
    base = {place: section for place, section, _ in _sections(data)}
    for name, hook in mapping(mapping(data).get("hooks")).items():
        command = hook if isinstance(hook, list | tuple) else mapping(hook).get("command")
        for key, message in _missing({"command": command}, folder, here=here):
            yield ("hooks", name, *(key if command is not hook else key[1:])), message
    for place, section in base.items():
        for key, message in _missing(section, folder, here=here):
            yield (*place, *key), message
    for number, cell in enumerate(cells):
        for place, section, _ in _sections(cell):
            if section != base.get(place):
                for key, message in _missing(section, folder, here=here):
                    yield (number, *place, *key), message


def _missing(task: Mapping[str, Any], folder: Path, *, here: bool) -> Iterator[tuple[Place, str]]:
    command = [word for word in items(task.get("command")) if isinstance(word, str)]
    if not command:
        return
    if (cwd := _fixed(task.get("cwd"))) is not None:
        place = folder / cwd
        if not place.is_dir():
            yield ("cwd",), f"there is no folder {place}{_near(cwd, folder, folders=True)}"
            return
    elif task.get("cwd") is None:
        place = folder
    else:
        return  # it depends on the run
    yield from _missing_program(command, place, here=here)
    if items(task.get("depends_on")):
        return  # a task before may make the files
    if (stdin := _fixed(task.get("stdin"))) is not None and not (folder / stdin).exists():
        yield ("stdin",), f"there is no file {folder / stdin}{_near(stdin, folder)}"
    is_run = command[0] == PYTHON or _INTERPRETERS.fullmatch(Path(command[0]).name)
    script = _fixed(command[1]) if len(command) > 1 and is_run else None
    if script is not None and not script.startswith("-") and not (place / script).exists():
        yield ("command", 1), f"there is no file {place / script}{_near(script, place)}"


def _missing_program(command: list[str], place: Path, *, here: bool) -> Iterator[tuple[Place, str]]:
    name = _fixed(command[0])
    if name is None or (os.sep not in name and not here):
        return
    path = program.environment()["PATH"]
    try:
        program.find(name, cwd=place, path=path)
    except ProcessError as error:
        known = [] if os.sep in name else [each for each in path.split(os.pathsep) if Path(each).is_dir()]
        on_path = (other.name for each in known for other in _entries(Path(each)))
        yield ("command", 0), f"{error}{_near(name, place) or suggestion(name, on_path)}"


def _fixed(text: object) -> str | None:
    """The text, unless it has placeholders."""
    if not isinstance(text, str) or not text or any(placeholders.names(text)):
        return None
    return placeholders.filled(text, str)


def _near(name: str, folder: Path, *, folders: bool = False) -> str:
    parent = Path(name).parent
    found: Iterable[Path] = _entries(folder / parent)
    names = [str(parent / each.name) for each in found if each.is_dir() == folders]
    return suggestion(name, [each for each in names if each != name])


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []

"""Reads the lines of a run, page by page, also while they are being written. The functions block."""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from governor.messages import OutputLine, OutputPage
from governor.output.run_files import dropped_of, file_of, files_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Position: TypeAlias = tuple[int, int]
    """The number of a file, and an offset in it."""

PAGE_LINES: Final = 2000
SCANNED_LINES: Final = 200_000
"""For one page, also if few of them are asked for."""

_decode: Final = msgspec.json.Decoder(OutputLine).decode


class Wanted(Protocol):
    """Which lines are asked for; None: all. `messages.ReadOutput` is one."""

    @property
    def since(self) -> float | None: ...
    @property
    def task(self) -> str | None: ...
    @property
    def episode(self) -> int | None: ...
    @property
    def level(self) -> str | None: ...


def folder_of(run_folder: Path) -> Path:
    """The folder of a run's lines."""
    return run_folder / "logs"


def conductors_in(folder: Path) -> list[str]:
    """The conductors that have printed something."""
    return list(files_in(folder))


def page_of(
    folder: Path, wanted: Wanted, cursor: Mapping[str, Position], conductors: Sequence[str]
) -> OutputPage:
    """The lines behind `cursor` (of the last page; empty at the beginning) of these conductors, in the order of their times.
    Raises OSError.
    """
    files = files_in(folder)
    sources = [
        _lines(folder, name, cursor.get(name, (numbers[0], 0)), numbers, since=wanted.since)
        for name, numbers in files.items()
        if name in conductors
    ]
    accepts = _filter(wanted)
    found: list[OutputLine] = []
    positions = dict(cursor)
    more = False
    for scanned, (line, position) in enumerate(heapq.merge(*sources, key=lambda each: each[0].at)):
        if len(found) >= PAGE_LINES or scanned >= SCANNED_LINES:
            more = True
            break
        positions[line.conductor] = position
        if accepts(line):
            found.append(line)
    return OutputPage(lines=tuple(found), cursor=positions, more=more)


def _lines(
    folder: Path, conductor: str, position: Position, numbers: list[int], *, since: float | None
) -> Iterator[tuple[OutputLine, Position]]:
    """Each line of a conductor from a position on, and the position behind it."""
    before = position[0]
    for number in (each for each in numbers if each >= position[0]):
        path = file_of(folder, conductor, number)
        try:
            file = path.open("rb")
        except FileNotFoundError:  # dropped meanwhile
            continue
        with file:
            if since is not None and path.stat().st_mtime < since:
                before = number
                continue
            file.seek(position[1] if number == position[0] else 0)
            offset = file.tell()
            for data in file:
                if not data.endswith(b"\n"):
                    break  # it is being written
                offset += len(data)
                try:
                    line = _decode(data)
                except msgspec.MsgspecError:  # damaged
                    continue
                if number > before + 1:
                    yield _gap(folder, conductor, line), (number, 0)
                before = number
                yield line, (number, offset)


def _gap(folder: Path, conductor: str, line: OutputLine) -> OutputLine:
    """What stands for the files that are gone before this line."""
    gone = dropped_of(folder, conductor)
    return OutputLine(
        at=line.at,
        conductor=conductor,
        pid=line.pid,
        stream=line.stream,
        text="",
        dropped=(gone.lines, gone.size),
    )


def _filter(wanted: Wanted) -> Callable[[OutputLine], bool]:
    lowest = logging.getLevelNamesMapping().get((wanted.level or "").upper())

    def accepts(line: OutputLine) -> bool:
        return (
            (wanted.since is None or line.at >= wanted.since)
            and (wanted.task is None or line.task == wanted.task)
            and (wanted.episode is None or line.episode == wanted.episode)
            and (lowest is None or _level_of(line) >= lowest)
        )

    return accepts


def _level_of(line: OutputLine) -> int:
    """0 for a line without one. A level with a name of its own is a number, as in ``Level 25``."""
    name = line.level.upper()
    number = logging.getLevelNamesMapping().get(name)
    if number is None:
        digits = name.rpartition(" ")[2]
        number = int(digits) if digits.isdecimal() else 0
    return number

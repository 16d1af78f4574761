"""Reads the lines of a run, page by page, also while they are being written. The functions block."""

from __future__ import annotations

import heapq
import logging
import os
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from governor.errors import UsageError
from governor.files import open_regular
from governor.messages import OutputLine, OutputPage
from governor.output.run_files import dropped_of, file_of, files_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from governor.messages import ReadOutput

    Position: TypeAlias = tuple[int, int]
    """The number of a file, and an offset in it."""

PAGE_LINES: Final = 2000
PAGE_BYTES: Final = 1 << 20
"""Of text, about."""
_LONGEST: Final = 1 << 20
"""Bytes of one line in a file."""
_LATEST: Final = 1e11
"""Seconds since 1970: the year has four digits."""
_LARGEST: Final = 1 << 53
"""Number in a line, as in `lines`: user code can write to the files."""
SCANNED_LINES: Final = 200_000
"""For one page, also if few of them are asked for."""

_decode: Final = msgspec.json.Decoder(OutputLine).decode


def folder_of(run_folder: Path) -> Path:
    """The folder of a run's lines."""
    return run_folder / "logs"


def conductors_named(folder: Path, name: str, planned: Callable[[], Sequence[str]]) -> list[str]:
    """The conductors with this name, or whose name ends in it behind a dot. `planned` are those of the run, also such that have printed
    nothing yet. Raises UsageError if there is none.
    """
    known = list(files_in(folder))
    found = [each for each in known if name in (each, each.partition(".")[2])]
    if not found:
        known = sorted({*known, *planned()})
        found = [each for each in known if name in (each, each.partition(".")[2])]
    if not found:
        raise UsageError(f"the run has no conductor {name!r}; it has {', '.join(known) or 'none yet'}")
    return found


def page_of(folder: Path, asked: ReadOutput, conductors: Sequence[str] | None = None) -> OutputPage:
    """The lines behind the cursor of these conductors, or of all, in the order of their times. Raises OSError."""
    files = files_in(folder)
    sources = [
        _lines(folder, name, asked.cursor.get(name, (numbers[0], 0)), numbers, since=asked.since)
        for name, numbers in files.items()
        if conductors is None or name in conductors
    ]
    accepts = filter_of(asked, conductors)
    found: list[OutputLine] = []
    positions = dict(asked.cursor)
    more = False
    size = 0
    for scanned, (line, name, position) in enumerate(heapq.merge(*sources, key=lambda each: each[0].at)):
        if len(found) >= PAGE_LINES or scanned >= SCANNED_LINES or size >= PAGE_BYTES:
            more = True
            break
        positions[name] = position
        if accepts(line):
            found.append(line)
            size += len(line.text)
    return OutputPage(lines=tuple(found), cursor=positions, more=more)


def _lines(
    folder: Path, conductor: str, position: Position, numbers: list[int], *, since: float | None
) -> Iterator[tuple[OutputLine, str, Position]]:
    """Each line of a conductor from a position on, the conductor, and the position behind the line."""
    before = position[0]
    for number in (each for each in numbers if each >= position[0]):
        path = file_of(folder, conductor, number)
        try:
            file = os.fdopen(open_regular(path, os.O_RDONLY), "rb")
        except FileNotFoundError:  # dropped meanwhile
            continue
        with file:
            if since is not None and path.stat().st_mtime < since:
                before = number
                continue
            file.seek(position[1] if number == position[0] else 0)
            offset = file.tell()
            while data := file.readline(_LONGEST):
                if not data.endswith(b"\n") and len(data) < _LONGEST:
                    break  # it is being written
                offset += len(data)
                line = _line_of(data)
                if line is None:
                    continue
                if number > before + 1:
                    yield _gap(folder, conductor, line), conductor, (number, 0)
                before = number
                yield line, conductor, (number, offset)


def _line_of(data: bytes) -> OutputLine | None:
    """None if it is damaged, or not of ours."""
    try:
        line = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    numbers = (line.pid, line.run, line.attempt, line.episode, line.evaluation, *(line.dropped or ()))
    is_sound = 0 <= line.at <= _LATEST and all(
        0 <= number <= _LARGEST for number in numbers if number is not None
    )
    return line if is_sound else None


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


def filter_of(asked: ReadOutput, conductors: Sequence[str] | None) -> Callable[[OutputLine], bool]:
    """Whether a line is asked for."""
    lowest = logging.getLevelNamesMapping().get((asked.level or "").upper())

    def accepts(line: OutputLine) -> bool:
        return (
            (asked.since is None or line.at >= asked.since)
            and (asked.task is None or line.task == asked.task)
            and (asked.run is None or line.run == asked.run)
            and (asked.attempt is None or line.attempt == asked.attempt)
            and (asked.episode is None or line.episode == asked.episode)
            and (asked.evaluation is None or line.evaluation == asked.evaluation)
            and (lowest is None or _level_of(line) >= lowest)
            and (conductors is None or line.conductor in conductors)
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

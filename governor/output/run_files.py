"""The lines of one run on disk: ``<conductor>.jsonl`` begins, ``<conductor>~000001.jsonl`` and so on go on.

Rules:
1. All files of a run have at most `limit` bytes. Beyond it the oldest file of the conductor with most bytes goes, never its
   first one: the first and the last lines are kept. How much is gone is in ``<conductor>~dropped.json``.
2. A line is in the kernel when `append` returns. `keep_free` bytes of the disk are left to others: where less would be left, older
   files go first, and then new lines. What the disk refuses is dropped and counted, too.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from governor.files import append, open_regular, write_whole
from governor.messages import OutputLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SEGMENTS: Final = 64
"""Files of a run at its limit, about."""
SEGMENTS_OF_CONDUCTOR: Final = 6
"""So many more for each: two of its own stay, and the first ones were larger when there were fewer conductors."""
_encode: Final = msgspec.json.Encoder().encode_lines
_decode: Final = msgspec.json.Decoder(OutputLine).decode


class Dropped(NamedTuple):
    """Lines and bytes that are no longer there, from the end of the conductor's first file on."""

    lines: int = 0
    size: int = 0

    def and_also(self, lines: int, size: int) -> Dropped:
        return Dropped(self.lines + lines, self.size + size)


def file_of(folder: Path, conductor: str, number: int) -> Path:
    """The file with this number of a conductor's lines."""
    return folder / (f"{conductor}~{number:06d}.jsonl" if number else f"{conductor}.jsonl")


def files_in(folder: Path) -> dict[str, list[int]]:
    """The numbers of each conductor's files, in order."""
    found: dict[str, list[int]] = {}
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        names = []
    for name in names:
        conductor, _, text = name.removesuffix(".jsonl").partition("~")
        number = int(text) if text.isdecimal() else 0
        if name == file_of(folder, conductor, number).name:  # not of user code
            found.setdefault(conductor, []).append(number)
    return {conductor: sorted(found[conductor]) for conductor in sorted(found)}


def dropped_of(folder: Path, conductor: str) -> Dropped:
    """What is missing behind the first file of the conductor."""
    try:
        return Dropped(*json.loads((folder / f"{conductor}~dropped.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return Dropped()


def free_bytes(folder: Path) -> int:
    """Of its disk. Raises OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


class RunFiles:
    """Where the lines of one run are written. The methods block."""

    def __init__(self, folder: Path, *, limit: int, keep_free: int = 0) -> None:
        self.refused_bytes = 0
        """Of lines that had no room on the disk."""
        self._folder = folder
        self._limit = limit
        self._keep_free = keep_free
        self._sizes: dict[str, dict[int, int]] = {}
        self._refused: dict[str, OutputLine] = {}
        """What had no room, and is not on record yet: the line that says so, by conductor."""
        for conductor, numbers in files_in(folder).items():
            self._sizes[conductor] = {n: file_of(folder, conductor, n).stat().st_size for n in numbers}

    def append(self, conductor: str, lines: Sequence[OutputLine]) -> None:
        """Writes the lines of a conductor."""
        for start in range(0, len(lines), 1000):
            batch = list(lines[start : start + 1000])
            if (refused := self._refused.pop(conductor, None)) is not None:
                batch.insert(0, refused)
            data, position, written = _encode(batch), 0, 0
            while position < len(data):
                number, end = self._place(conductor, data, position)
                if not self._write(conductor, number, data[position:end]):
                    self._refused[conductor] = dropped_line(batch[-1], _counted(batch[written:]))
                    self.refused_bytes += len(data) - position
                    break
                written += data.count(b"\n", position, end)
                position = end

    def close(self) -> None:
        """Says how much had no room at the end."""
        self._keep_free = 0
        for conductor, refused in list(self._refused.items()):
            del self._refused[conductor]
            self.append(conductor, [refused])

    def _place(self, conductor: str, data: bytes, start: int) -> tuple[int, int]:
        """The file that takes the next lines of `data`, and where in `data` those end; at least one line."""
        sizes = self._sizes.setdefault(conductor, {})
        segment = self._limit // (SEGMENTS + SEGMENTS_OF_CONDUCTOR * len(self._sizes))
        number = max(sizes, default=0)
        if sizes.get(number):
            until = start + segment - sizes[number]
            if until >= len(data):
                return number, len(data)
            if until > start and (end := data.rfind(b"\n", start, until) + 1):
                return number, end
            number += 1
        if len(data) - start <= segment:
            return number, len(data)
        return number, data.rfind(b"\n", start, start + segment) + 1 or data.find(b"\n", start) + 1

    def _write(self, conductor: str, number: int, data: bytes) -> bool:
        """Whether the disk takes it."""
        path = file_of(self._folder, conductor, number)
        try:
            while not self._has_room(len(data)):
                if not self._drop_oldest():
                    return False
            with os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", 0) as file:
                append(file.fileno(), data)
        except OSError:
            return False
        sizes = self._sizes[conductor]
        sizes[number] = sizes.get(number, 0) + len(data)
        self._shrink()
        return True

    def _shrink(self) -> None:
        while sum(sum(sizes.values()) for sizes in self._sizes.values()) > self._limit:
            if not self._drop_oldest():
                return

    def _has_room(self, size: int) -> bool:
        """Raises OSError."""
        return not self._keep_free or free_bytes(self._folder) - size >= self._keep_free

    def _drop_oldest(self) -> bool:
        """Drops a file of the conductor with most bytes; false if there are only the first and the last file of each."""
        rotated = [name for name, sizes in self._sizes.items() if len(sizes) > 2]
        if not rotated:
            return False
        largest = max(rotated, key=lambda name: sum(self._sizes[name].values()))
        self._drop(largest, min(number for number in self._sizes[largest] if number))
        return True

    def _drop(self, conductor: str, number: int) -> None:
        path = file_of(self._folder, conductor, number)
        self._sizes[conductor].pop(number)
        try:
            gone = dropped_of(self._folder, conductor).and_also(*_contents(path))
            counted = self._folder / f"{conductor}~dropped.json"
            write_whole(counted, json.dumps(gone).encode(), sync=False, mode=0o600)
        except OSError:
            pass  # the count is too low: no reason to keep the file
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def dropped_line(before: OutputLine, dropped: tuple[int, int]) -> OutputLine:
    """Stands where lines are missing, before this one."""
    return OutputLine(
        at=before.at,
        conductor=before.conductor,
        pid=before.pid,
        stream=before.stream,
        text="",
        dropped=(dropped[0], dropped[1]),
    )


def _counted(lines: Iterable[OutputLine]) -> Dropped:
    """Lines and their text, and what was dropped before."""
    found = Dropped()
    for line in lines:
        found = found.and_also(*(line.dropped or (1, len(line.text))))
    return found


def _contents(path: Path) -> Dropped:
    found = Dropped()
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        for data in file:
            try:
                line = _decode(data)
            except msgspec.MsgspecError:  # damaged
                continue
            found = found.and_also(*(line.dropped or (1, len(line.text))))
    return found

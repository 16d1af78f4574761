"""``<run folder>/episodes/<phase>.jsonl``: one JSON line for each episode that ended, written before it is reported.

Rules:
1. A line is written to the kernel when `append` returns, so it survives this process. If the disk is full the episode is
   `failed`, and its line is written with the next ones.
2. Lines are in the order in which episodes are reported. Opened again after a crash, the file is cut behind the last line of
   a reported episode: what follows is torn, or was never reported, and its episodes are played again.
3. A file that another run has too, as a hard link, is not changed: the run gets one of its own.
4. The steps are beside it, in streams (`stream`) and, when the phase has ended, in one Parquet file (`trajectories`).
"""

from __future__ import annotations

import mmap
import os
import re
from typing import TYPE_CHECKING, Final, Self

import msgspec

from governor import files, logs
from governor.failures import one_line
from governor.index_ranges import IndexRanges
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from pathlib import Path

    from governor.messages import EpisodeRecord

_encode = msgspec.json.Encoder().encode
_FIRST: Final = re.compile(rb'\{"index": ?(\d+),')
"""The index is the first key of a line."""
SUFFIX: Final = ".arrow"
_PARQUET: Final = b"PAR1"
"""How a Parquet file begins and ends; before the end is the length of its footer, in four bytes."""

log = logs.get_logger()


def folder_of(run_folder: Path) -> Path:
    return run_folder / "episodes"


def path_of(run_folder: Path, phase: str) -> Path:
    return folder_of(run_folder) / f"{files.name_of(phase)}.jsonl"


def parquet_of(run_folder: Path, phase: str) -> Path:
    return folder_of(run_folder) / f"{files.name_of(phase)}.parquet"


def streams_of(run_folder: Path, phase: str) -> list[tuple[int, int, Path]]:
    """Incarnation, worker and path of each stream of a phase, oldest first."""
    found = []
    folder, stem = folder_of(run_folder), files.name_of(phase)
    for path in folder.iterdir() if folder.is_dir() else ():
        parts = path.name.removesuffix(SUFFIX).rsplit(".", 2)
        if path.suffix == SUFFIX and parts[0] == stem and len(parts) == 3:
            found.append((int(parts[2]), int(parts[1]), path))
    return sorted(found)


def fault_of(run_folder: Path, phase: str, *, steps: bool) -> str:
    """What is gone or damaged of the files of a phase that has episodes on record, and `steps` of them; "" for nothing. It reads the ends
    of files alone. Blocks; raises OSError.
    """
    lines, table = path_of(run_folder, phase), parquet_of(run_folder, phase)
    if not lines.is_file():
        return f"{lines} is gone"
    if not table.is_file():
        return f"{table} is gone" if steps and not streams_of(run_folder, phase) else ""
    with table.open("rb") as file:
        size, begin = table.stat().st_size, file.read(len(_PARQUET))
        file.seek(max(size - 8, 0))
        end = file.read()
    is_whole = begin == _PARQUET == end[4:] and int.from_bytes(end[:4], "little") + 12 <= size
    return "" if is_whole else f"{table} is damaged: it is no whole Parquet file"


def as_not_recorded(record: EpisodeRecord, reason: str) -> EpisodeRecord:
    """The record of an episode that is not completely on disk: `failed`, unless its outcome is worse already."""
    if record.outcome not in COMPLETE:
        return record
    return msgspec.structs.replace(record, outcome="failed", reason=reason)


class EpisodeFile:
    def __init__(self, *, path: Path, phase: str, mode: str, reported: IndexRanges) -> None:
        """Blocks. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.stat().st_nlink > 1:
                keep_only(path, reported)
            else:
                os.truncate(path, _reported_length(path, reported))
        self._extra = {"phase": phase, "mode": mode}
        self._file = path.open("ab", buffering=0)
        self._behind = bytearray()
        """Lines that did not fit on the disk yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.append()
        self._file.close()

    def append(self, *records: EpisodeRecord) -> list[EpisodeRecord]:
        """Writes a line for each record; returns the records as they are to be reported."""
        try:
            files.append(self._file.fileno(), self._behind)
            self._behind.clear()
            files.append(self._file.fileno(), b"".join(map(self._line, records)))
        except OSError as error:
            log.warning("episode.not_written", episodes=len(records), reason=one_line(error))
            kept = [
                as_not_recorded(record, f"cannot write its line: {one_line(error)}") for record in records
            ]
            self._behind += b"".join(map(self._line, kept))
            return kept
        return [*records]

    def _line(self, record: EpisodeRecord) -> bytes:
        line = {**msgspec.structs.asdict(record), **self._extra}
        for name in ("values", "metrics", "traceback"):
            if not line[name]:
                del line[name]
        return _encode(line) + b"\n"


def indices_of(path: Path) -> IndexRanges:
    """The episodes that have a line. Blocks. Raises OSError."""
    with path.open("rb") as lines:
        return IndexRanges.of(index for line in lines if (index := _index_of(line)) >= 0)


def keep_only(path: Path, kept: IndexRanges) -> None:
    """Replaces the file by one with the first line of each of these episodes. Blocks. Raises OSError."""
    written = IndexRanges()
    with path.open("rb") as lines:
        kept_lines = (line for line in lines if (index := _index_of(line)) in kept and written.add(index))
        files.write_lines(path, kept_lines)


def _reported_length(path: Path, reported: IndexRanges) -> int:
    """The length of the file up to the end of the last line of a reported episode."""
    if path.stat().st_size == 0:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = content.rfind(b"\n") + 1
        while end:
            begin = content.rfind(b"\n", 0, end - 1) + 1
            if _index_of(content[begin:end]) in reported:
                break
            end = begin
        return end


def _index_of(line: bytes) -> int:
    """-1 for a torn line."""
    found = _FIRST.match(line) if line.endswith(b"}\n") else None
    return int(found[1]) if found is not None else -1

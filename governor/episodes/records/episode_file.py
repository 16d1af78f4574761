"""``<run folder>/episodes/<phase>.jsonl``: one JSON line for each episode that ended, written before it is reported.

Rules:
1. A line is written to the kernel when `append` returns, so it survives this process. If the disk is full the episode is
   `failed`, and its line is written with the next ones.
2. Opened again after a crash, the file keeps the lines of reported episodes and drops the others, which are played again
   (a torn last line, or a line that was written but never reported).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from governor import files, logs
from governor.episodes.entries import one_line
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from governor.messages import EpisodeRecord

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

log = logs.get_logger()


def path_of(run_folder: Path, phase: str) -> Path:
    return run_folder / "episodes" / f"{files.name_of(phase)}.jsonl"


def as_not_recorded(record: EpisodeRecord, reason: str) -> EpisodeRecord:
    """The record of an episode that is not completely on disk: `failed`, unless its outcome is worse already."""
    if record.outcome not in COMPLETE:
        return record
    return msgspec.structs.replace(record, outcome="failed", reason=reason)


class EpisodeFile:
    def __init__(self, *, path: Path, phase: str, mode: str, reported: Collection[int]) -> None:
        """Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _kept(path, set(reported))
        if kept is not None:
            files.write_whole(path, b"".join(kept))
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
        if not record.values:
            del line["values"]
        return _encode(line) + b"\n"


def _kept(path: Path, reported: set[int]) -> list[bytes] | None:
    if not path.exists():
        return None
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            index = _decode(line).get("index")
        except msgspec.MsgspecError:
            continue
        if index in reported and line.endswith(b"\n"):
            reported.discard(index)
            kept.append(line)
    return kept

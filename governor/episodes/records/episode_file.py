"""``<run folder>/episodes/<phase>.jsonl``: one JSON line for each episode that ended, written before it is reported.

Rules:
1. A line is in the kernel when `append` returns, so it outlives this process. A write that fails leaves no trace.
2. Opened again after a crash, the file keeps the lines of the episodes that were reported and drops the rest: those are
   played again (a torn last line, or one that was written but never reported).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from governor.messages import EpisodeRecord

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def path_of(run_folder: Path, phase: str) -> Path:
    """A phase may be called anything: what cannot stand in a file name is percent-encoded."""
    return run_folder / "episodes" / f"{quote(phase, safe=' !#$&()+,;=@[]^{}~')}.jsonl"


class EpisodeFile:
    def __init__(self, *, path: Path, phase: str, mode: str, reported: Collection[int]) -> None:
        """Raises OSError, as `append` does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _kept(path, set(reported))
        if kept is not None:
            beside = path.with_name(f"{path.name}.new")
            beside.write_bytes(b"".join(kept))
            beside.replace(path)
        self._extra = {"phase": phase, "mode": mode}
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, *records: EpisodeRecord) -> None:
        left = memoryview(b"".join(map(self._line, records)))
        size = self._file.tell()
        try:
            while left:
                left = left[self._file.write(left) :]  # a disk that fills up takes a part of it first
        except OSError:
            self._file.truncate(size)
            raise

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

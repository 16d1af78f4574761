"""Splits data that is too large for one message into chunks: the events that `watch` sends, and the result of a large run.

A chunk has about `CHUNK_BYTES` and `CHUNK_FRAMES` at most; only a single larger frame makes a larger chunk. The transport
accepts 64 MiB and `transport.frames.BODY_FRAMES` frames at once, and a broker keeps a chunk of each open request in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CHUNK_BYTES: Final = 1 << 20
CHUNK_FRAMES: Final = 256


def chunks(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    """All frames, in their order."""
    chunk: list[bytes] = []
    size = 0
    for frame in frames:
        if chunk and (size + len(frame) > CHUNK_BYTES or len(chunk) == CHUNK_FRAMES):
            yield chunk
            chunk, size = [], 0
        chunk.append(frame)
        size += len(frame)
    if chunk:
        yield chunk


def slices(whole: bytes) -> list[bytes]:
    """Splits `whole` into pieces of `CHUNK_BYTES` at most."""
    return [whole[start : start + CHUNK_BYTES] for start in range(0, len(whole), CHUNK_BYTES)]

"""What is more than a message takes, in parts: the events that `watch` sends, and the result of a large run.

A part is about `PARCEL_BYTES` and `PARCEL_FRAMES` at most; only a frame that is larger by itself makes a larger one. The transport
takes 64 MiB and `transport.frames.BODY_FRAMES` frames at once, and a broker keeps a part of each open request in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PARCEL_BYTES: Final = 1 << 20
PARCEL_FRAMES: Final = 256


def parcels(frames: Iterable[bytes]) -> Iterator[list[bytes]]:
    """All frames, in their order."""
    parcel: list[bytes] = []
    size = 0
    for frame in frames:
        if parcel and (size + len(frame) > PARCEL_BYTES or len(parcel) == PARCEL_FRAMES):
            yield parcel
            parcel, size = [], 0
        parcel.append(frame)
        size += len(frame)
    if parcel:
        yield parcel


def slices(whole: bytes) -> list[bytes]:
    """Joined they are `whole` again."""
    return [whole[start : start + PARCEL_BYTES] for start in range(0, len(whole), PARCEL_BYTES)]

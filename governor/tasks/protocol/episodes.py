"""Messages about episodes between a driver and its runners. A chunk of episodes is a task: each of its runs is an
episode, except the first, which builds environment and agent.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from governor.messages import EpisodeRecord

READY: Final = ""
WITHOUT_STATE: Final = "the agent's state is not visible"
"""Results of the first run of a chunk; any other is why its environment or agent cannot be built, reason and traceback."""
TOO_MANY_FAILED: Final = "too many before it failed"
"""Result in place of an episode that was not played: those before it have failed, more than the phase bears."""
UNPREPARED: Final = "another runner was made ready"
"""Result in place of an episode: the prepared runner was lost with its node, and this one continues its chunk."""


class EpisodeChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a task. `part` is the phase's `StartSimulation`, encoded. `resets` counts the commands to rebuild
    environment and agent. `replays` counts the repeated episodes of the phase up to the last one in this chunk.
    `bears`: as of `FailureBounds.left`, when it was made. `learned`: the agent has a saved state; `state` is that state, for a runner that does not see the run's folder.
    """

    number: int
    part: bytes
    indices: list[int]
    worker: int
    resets: int = 0
    replays: int = 0
    bears: tuple[int | None, int | None, int] | None = None
    learned: bool = False
    state: bytes | None = None

    def args(self) -> dict[str, Any]:
        """Arguments of the task; the chunk is encoded in one piece, because they are copied for each of its runs."""
        return {"number": self.number, "chunk": _encode(self)}


_encode: Final = msgspec.msgpack.Encoder().encode
decode_chunk: Final = msgspec.msgpack.Decoder(EpisodeChunk).decode


def encode_episode(record: EpisodeRecord, stream: str = "") -> list[Any]:
    """An episode for a message, with the name of the stream of its steps, if they are sent too."""
    return [*msgspec.structs.astuple(record), stream]


def decode_episode(values: list[Any]) -> tuple[EpisodeRecord, str]:
    """The inverse of `encode_episode`."""
    *fields, stream = values
    return EpisodeRecord(**dict(zip(EpisodeRecord.__struct_fields__, fields, strict=True))), stream

"""What a driver and its runners say of episodes. A chunk of them is a task: each of its runs is an episode, but the first,
which makes ready for them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from governor.messages import EpisodeRecord

CALL: Final = "governor.tasks.runner_process.episodes:play"
READY: Final = ""
WITHOUT_STATE: Final = "the agent's state is not to be seen"
"""What the first run of a chunk may return; all else is why its environment or agent cannot be made."""
UNPREPARED: Final = "another runner was made ready"
"""In place of an episode: that runner was lost with its node, and this one goes on with its chunk."""


class EpisodeChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What a task is called with. `part` is the phase's `StartSimulation`, encoded; `resets` counts how often all was to be
    built anew, `replays` how often an episode had had to be played again when the last one of these had to. `learned`: the
    agent has a saved state; `state` is that, for a runner that does not see the run's folder.
    """

    number: int
    part: bytes
    indices: list[int]
    worker: int
    resets: int = 0
    replays: int = 0
    learned: bool = False
    state: bytes | None = None

    def args(self) -> dict[str, Any]:
        """Of the task. They are copied for each of its runs: in one piece."""
        return {"number": self.number, "chunk": _encode(self)}


_encode: Final = msgspec.msgpack.Encoder().encode
decode_chunk: Final = msgspec.msgpack.Decoder(EpisodeChunk).decode


def told(record: EpisodeRecord, stream: str = "") -> list[Any]:
    """An episode as it travels, with the name of the stream that its steps are of, if they travel too."""
    return [*msgspec.structs.astuple(record), stream]


def heard(values: list[Any]) -> tuple[EpisodeRecord, str]:
    """What `told` gave."""
    *fields, stream = values
    return EpisodeRecord(**dict(zip(EpisodeRecord.__struct_fields__, fields, strict=True))), stream

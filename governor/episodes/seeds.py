"""Seeds of episodes: the same for the same run, phase and episode, whoever plays it and when."""

from __future__ import annotations

import struct
from hashlib import blake2b


def episode_seed(run_seed: int, *of_episode: int) -> int:
    """32 bits, as `reset` takes them; `of_episode` is phase and index, see `evaluation.entropy`. A hash: numpy's
    `SeedSequence` takes 20 us, as long as a step or two.
    """
    made_of = struct.pack(f"<{1 + len(of_episode)}Q", run_seed % 2**64, *of_episode)
    return int.from_bytes(blake2b(made_of, digest_size=4).digest(), "little")

"""Seeds: of an episode, determined by run, phase and episode alone; and of agents."""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np


def episode_seed(run_seed: int, *of_episode: int) -> int:
    """32 bits, as `reset` takes them; `of_episode` is phase and index, see `evaluation.entropy`. A hash, because numpy's
    `SeedSequence` takes 20 us, as long as a step or two.
    """
    made_of = struct.pack(f"<{1 + len(of_episode)}Q", run_seed % 2**64, *of_episode)
    return int.from_bytes(blake2b(made_of, digest_size=4).digest(), "little")


def agent_seed(run_seed: int, name: str) -> int:
    """32 bits; agents with different names draw different random numbers."""
    entropy = [run_seed % 2**64, *name.encode()]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])

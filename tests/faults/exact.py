"""Trainings whose processes are killed at random moments must be those of an undisturbed run.

    python tests/faults/exact.py --example lake --transport conductors --kills 100 [--seed 1]
    python tests/faults/exact.py --example steady --transport conductors --kills 50    # of four workers

Each run gets some of the kills. The folder of a run that differs is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this file is started by its path

from tests.support.exact_runs import (
    EXAMPLES,
    FOLDERS,
    Disturbed,
    difference,
    is_exact,
    random_kills,
    record,
    run_of,
)
from tests.system.conftest import Instance

EPISODES = 100


async def play(
    run: dict[str, Any], kills: list[tuple[str, int, float]], before: dict[str, Any] | None
) -> tuple[dict[str, Any], int, str]:
    """What is on record, how many kills there were, and what is wrong."""
    instance = Instance(Path(tempfile.mkdtemp(prefix="gx-", dir="/tmp")))
    disturbed = Disturbed(instance, run, FOLDERS[run["name"]])
    result = await disturbed.play(kills)
    found = record(run, Path(result.folder))
    wrong = "" if result.outcome == "finished" else f"{result.outcome}: {result.reason}"
    wrong = wrong or (difference(before, found) if before is not None else "")
    if is_exact(run):
        wrong = wrong or next((phase.not_exact for phase in result.phases if phase.exact is False), "")
    if wrong:
        print(f"{instance.folder}: {wrong}", flush=True)
    else:
        shutil.rmtree(instance.folder)
    return found, len(disturbed.killed), wrong


async def campaign(example: str, transport: str, *, kills: int, seed: int) -> int:
    run = run_of(
        {**EXAMPLES[example], "simulate": {**EXAMPLES[example]["simulate"], "episodes": EPISODES}}, transport
    )
    undisturbed, _, wrong = await play(run, [], None)
    if wrong:
        return 1
    done = runs = bad = 0
    while done < kills:
        chosen = random.Random(f"{seed}.{runs}")
        planned = random_kills(chosen, transport, episodes=2 * EPISODES + 50, number=chosen.randint(1, 4))
        _, number, wrong = await play(run, planned, undisturbed)
        done, runs, bad = done + number, runs + 1, bad + bool(wrong)
        print(f"{done} kills in {runs} runs, {bad} differ: {planned}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--example", choices=[*EXAMPLES], default="lake")
    parser.add_argument("--transport", choices=["in_process", "conductors"], default="in_process")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sys.exit(asyncio.run(campaign(asked.example, asked.transport, kills=asked.kills, seed=asked.seed)))

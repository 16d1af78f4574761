"""Trainings in which processes are killed, beside the same ones undisturbed: what is on record must be the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from governor.episodes import trajectories
from governor.episodes.records import state_file
from tests.support.pages.example_runs import examples_path

if TYPE_CHECKING:
    import random

LAKE = {
    "name": "lake",
    "seed": 7,
    "conductors": {
        "environments": {"world": {"entry": "gymnasium:FrozenLake-v1", "params": {"is_slippery": False}}},
        "agents": {"learner": {"entry": "q_learner:QLearner", "params": {"alpha": 0.5, "gamma": 0.99}}},
    },
    "simulate": {"episodes": 400, "max_steps": 100},
}
POLE = {
    "name": "pole",
    "seed": 7,
    "conductors": {
        "environments": {"world": {"entry": "gymnasium:CartPole-v1"}},
        "agents": {
            "learner": {"entry": "policy_gradient:PolicyGradient", "params": {"batch": 10, "rate": 0.1}}
        },
    },
    "simulate": {"episodes": 150},
}
STEADY = {
    "name": "steady",
    "seed": 7,
    "conductors": {
        "environments": {"world": {"entry": "gymnasium:CartPole-v1", "pool": 4}},
        "agents": {"learner": {"entry": "steady_agent:SteadyAgent"}},
    },
    "simulate": {"episodes": 150, "workers": 4},
}
"""Of several workers: what does not depend on their order is the same."""
EXAMPLES = {"lake": LAKE, "pole": POLE, "steady": STEADY}
FOLDERS = {
    "lake": examples_path("frozen_lake"),
    "pole": examples_path("cartpole"),
    "steady": Path(__file__).parent / "user_code",
}
OF_ORDER = ["worker", "weight_version"]
"""Columns of steps that depend on which of several workers was faster."""
VICTIMS = {
    "conductors": ("agent.learner", "environment.world", "simulation", "forkserver", "daemon"),
    "in_process": ("simulation", "forkserver", "daemon"),
}


def run_of(example: dict[str, Any], transport: str, **more: Any) -> dict[str, Any]:
    """Two trainings with evaluations between, and an evaluation."""
    simulate = {"environment": "world", "agents": ["learner"], "transport": transport, **example["simulate"]}
    train = {
        "simulate": simulate,
        "evaluate": {"every": max(simulate["episodes"] // 4, 1), "episodes": 5},
        **more,
    }
    evaluate = {"name": "evaluate", "mode": "eval", "simulate": {**simulate, "episodes": 20}}
    phases = [{"name": "train", **train}, evaluate, {"name": "again", **train}]
    return {key: example[key] for key in ("name", "seed", "conductors")} | {
        "phases": phases,
        "restart": {"conductors": 1000},
    }


def is_exact(run: dict[str, Any]) -> bool:
    """Whether it has one worker."""
    return "workers" not in run["phases"][0]["simulate"]


def record(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What is on record of a run: the steps of its phases, but for the number of the attempt, and the agent's state. Of one that is not
    exact what does not depend on the order of its steps.
    """
    exact = is_exact(run)
    without = ["attempt"] if exact else ["attempt", *OF_ORDER]
    found: dict[str, Any] = {
        phase: trajectories.read(folder, phase).drop_columns(without)
        for phase in trajectories.phases_of(folder)
    }
    if exact:
        found["state"] = state_file.dumps(state_file.load(folder / "agents" / "learner.state"))
    return found


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Where two records differ first, or ""."""
    for part in [*one, *(part for part in other if part not in one)]:
        if part not in one or part not in other:
            return f"{part} is missing"
        if part != "state" and not one[part].equals(other[part]):
            pair = one[part], other[part]
            names = [name for name in pair[0].column_names if not pair[0][name].equals(pair[1][name])]
            rows = (
                row
                for row in range(min(map(len, pair)))
                if any(pair[0][name][row] != pair[1][name][row] for name in names)
            )
            row = next(rows, -1)
            episode = pair[0]["episode"][row].as_py() if row >= 0 else None
            return f"{part}: {names} of {list(map(len, pair))} rows, first in row {row}, episode {episode}"
    return "" if one.get("state") == other.get("state") else "the agent's state"


class Disturbed:
    """One run on an `instance` (of the system tests), with kills after so many ended episodes and a while. `after` waits a random while."""

    def __init__(self, instance: Any, run: dict[str, Any], folder: Path) -> None:
        self.instance = instance
        self.run = run
        self.folder = folder
        self.events: list[Any] = []
        self.killed: list[str] = []

    async def play(self, kills: list[tuple[str, int, float]]) -> Any:
        """Kills each victim when so many episodes have ended, and so many seconds later. Returns the result of the run."""
        uid, left = "", list(kills)
        while True:
            async with self.instance.serve() as tree:
                uid = uid or await tree.executor.submit(self.run, folder=self.folder)
                result = await self._follow(tree, uid, left)
                if result is not None:
                    return result

    async def _follow(self, tree: Any, uid: str, left: list[tuple[str, int, float]]) -> Any:
        """None when the daemon is dead."""
        ended = 0
        async with contextlib.aclosing(tree.watch(uid)) as events:
            async for event in events:
                ended += event.kind == "episode.ended"
                if left and ended >= left[0][1] and event.kind == "episode.ended":
                    victim, _, seconds = left.pop(0)
                    await asyncio.sleep(seconds)
                    await self._kill(tree, uid, victim)
                    if victim in {"daemon", "stop"}:
                        await tree.process.wait()
                        return None
        return await tree.executor.result(uid)

    async def _kill(self, tree: Any, uid: str, victim: str) -> None:
        if victim in {"daemon", "stop"}:
            self.killed.append(victim)
            tree.process.send_signal(signal.SIGTERM) if victim == "stop" else tree.daemon.kill()
            return
        [run] = (await tree.executor.status(uid)).runs
        name = "simulation" if victim == "forkserver" else victim
        pid = next((each.pid for each in run.conductors if each.name == name and each.pid), None)
        if pid is None:
            return
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            os.kill(psutil.Process(pid).ppid() if victim == "forkserver" else pid, signal.SIGKILL)
            self.killed.append(victim)


def random_kills(
    chosen: random.Random, transport: str, *, episodes: int, number: int
) -> list[tuple[str, int, float]]:
    moments = sorted(chosen.randrange(1, episodes) for _ in range(number))
    return [(chosen.choice(VICTIMS[transport]), moment, chosen.random() * 0.03) for moment in moments]

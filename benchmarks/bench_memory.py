"""Processes and PSS of a run in work, the whole tree below the guard: without tasks, and with one task on Ray.

The executor that watches is not counted: it is this process. `python benchmarks/bench_memory.py` takes about 12 s.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from support.instance import Instance
from support.process_tree import Memory, maps_ray, tree
from support.rows import Row, table

EPISODES_BEFORE = 50
"""The run is weighed when it is at work, not while it starts."""
SHOWN = 9
RAYS_OWN = ("ray", "gcs_server")
PEER_PROCESSES, PEER_PSS = "12", "0.89 GB"


def _run(*, tasks: bool) -> dict[str, Any]:
    phase: dict[str, Any] = {
        "name": "work",
        "simulate": {"environment": "world", "agents": ["walker"], "episodes": 100_000, "max_steps": 10},
    }
    if tasks:
        phase["tasks"] = [{"id": "wait", "call": "user_code.step_tasks:wait", "args": {"seconds": 60}}]
    return {
        "name": "weigh",
        "conductors": {
            "environments": {"world": {"entry": "user_code.step_world:Endless"}},
            "agents": {"walker": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [phase],
        "limits": {"wall_clock": "50s"},
    }


async def _weigh(*, tasks: bool) -> tuple[list[Memory], bool]:
    """The tree at work, and whether Ray is mapped in the daemon."""
    async with Instance() as instance:
        episodes, task_runs = 0, not tasks
        async with contextlib.aclosing(instance.events(_run(tasks=tasks))) as events:
            async for event in events:
                episodes += event.kind == "episode.ended"
                task_runs = task_runs or event.kind == "task.started"
                if task_runs and episodes >= EPISODES_BEFORE:
                    found = tree(instance.pid), maps_ray(instance.daemon_pid)
                    await instance.executor.abort(event.uid, reason="weighed")
                    return found
    raise RuntimeError("the run ended before it could be weighed")


def _rows(label: str, found: list[Memory], *, ray: bool) -> list[Row]:
    heaviest = sorted(found, key=lambda one: -one.pss)
    shown = ", ".join(f"{one.name} {one.pss:.0f}" for one in heaviest[:SHOWN])
    rays = [one for one in found if one.name.startswith(RAYS_OWN)]
    share = f"{len(rays)} of them, {sum(one.pss for one in rays):.0f} MB, are Ray's own; palaestrAI's run had no tasks"
    return [
        Row(
            what=f"processes of a running run, {label}",
            figure=float(len(found)),
            unit="",
            peer=PEER_PROCESSES,
            at_most=12.0,
            note="guard and resource tracker included",
            if_missed=share,
        ),
        Row(
            what=f"PSS of a running run, {label}",
            figure=sum(one.pss for one in found) / 1000,
            unit="GB",
            peer=PEER_PSS,
            at_most=0.89,
            note=f"in MB: {shown}{', ...' if len(found) > SHOWN else ''}",
            if_missed=share,
        ),
        Row(what=f"Ray's files mapped in the daemon, {label}", figure=float(ray), unit="", at_most=0.0),
    ]


async def _measure() -> list[Row]:
    rows = []
    for label, tasks in (("no tasks", False), ("with a task on Ray", True)):
        found, ray = await _weigh(tasks=tasks)
        rows += _rows(label, found, ray=ray)
    return rows


def measure() -> list[Row]:
    return asyncio.run(_measure())


if __name__ == "__main__":
    print(table(measure()))

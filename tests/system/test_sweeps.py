"""Groups of runs on whole process trees: none is lost and none is done twice, whatever kills the daemon."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

pytestmark = pytest.mark.system

KILLS = 4


def quick(walk, *, entry="user_code:Walker", episodes=2, **matrix):
    made = walk(entry=entry, episodes=episodes)
    made["phases"][0]["mode"] = "eval"
    made["phases"][0]["simulate"] |= {"transport": "in_process", "workers": 1}
    return {**made, "matrix": matrix}


async def until_ended(tree, group, number):
    """Waits until at least so many runs of the group have ended."""
    async for progress in tree.executor.watch_group(group):
        if (
            sum(count for state, count in progress.counts.items() if state in ("finished", "failed"))
            >= number
        ):
            return


async def kill(tree):
    tree.daemon.send_signal(signal.SIGKILL)
    await tree.gone()


async def ends_of(tree, runs):
    """How often each of them has ended."""
    found = Counter()
    for uid in runs:
        async for event in tree.executor.watch(uid, kinds=("run.ended",)):
            found[event.uid] += 1
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_sweep_of_200_runs_ends_with_200_results_though_the_daemon_is_killed(instance, walk):
    made = quick(walk, **{"train.simulate.max_steps": [5, 10, 20, 40], "seed": "range(50)"})
    group, runs = "", ()
    for life in range(KILLS + 1):
        async with instance.serve("--slots", "4") as tree:
            again = await tree.executor.submit_group(made, key="sweep", folder=instance.folder)
            assert again.known == bool(group)
            assert (again.uid, again.runs) == ((group, runs) if group else (again.uid, again.runs))
            group, runs = again.uid, again.runs
            if life < KILLS:
                await until_ended(tree, group, 30 * (life + 1))
                await kill(tree)
                continue
            found = await tree.executor.wait_group(group)
            assert Counter(cell.state for cell in found.cells) == {"finished": 200}
            assert [line.metrics["return_mean"].n for line in found.lines] == [50] * 4
            assert [cell.uid for cell in found.cells] == list(runs)
            assert await ends_of(tree, runs) == Counter(runs)


async def test_a_group_is_held_to_its_bounds_by_the_next_daemon_too(instance, walk):
    """One at a time; the first failure ends those that have not begun, and is told once."""
    made = quick(
        walk,
        episodes=20,
        **{"agents.walker.entry": ["user_code:Slow", "user_code:Stumbler"], "seed": "range(3)"},
        max_parallel=1,
        fail_fast=True,
    )
    async with instance.serve("--slots", "3") as tree:
        group = await tree.executor.submit_group(made, folder=instance.folder)
        await until_ended(tree, group.uid, 1)
        await kill(tree)
    async with instance.serve("--slots", "3") as tree:
        async for progress in tree.executor.watch_group(group.uid):
            running = getattr(progress, "counts", {}).get("running", 0)
            assert running <= 1
        cells = (await tree.executor.group(group.uid)).cells
        assert [cell.state for cell in cells] == ["finished"] * 3 + ["failed", "aborted", "aborted"]
        assert {cell.reason for cell in cells[4:]} == {
            f"run {group.runs[3]} of its group has failed (fail_fast)"
        }
        assert await ends_of(tree, group.runs) == Counter(group.runs)
        await kill(tree)
    async with instance.serve("--slots", "3") as tree:
        assert await ends_of(tree, group.runs) == Counter(group.runs)
        resumed = await tree.executor.resume_group(group.uid)
        await tree.until(resumed.runs[0], "run.transition")
        changed = [(await tree.executor.abort_group(group.uid, "enough")).changed for _ in range(2)]
        assert (resumed.changed, changed) == (3, [3, 0])
        await kill(tree)
    async with instance.serve("--slots", "3") as tree:
        cells = (await tree.executor.wait_group(group.uid)).cells
        assert {cell.uid: cell.state for cell in cells[3:]}.keys() == set(resumed.runs)
        assert {cell.state for cell in cells[4:]} == {"aborted"}
        assert {cell.reason for cell in cells[4:]} == {"enough"}

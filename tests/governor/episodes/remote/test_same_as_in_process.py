"""Which episodes there are, and what an agent hears of them, is the same on either transport."""

import pytest

from governor.episodes import trajectories
from governor.messages import Until
from tests.support.in_process_commands import vector


def told(records):
    return sorted((r.index, r.outcome, r.value, r.steps) for r in records)


@pytest.mark.parametrize(
    ("size", "until"),
    [
        (2, Until(steps=15)),
        (1, Until(steps=15)),
        (3, Until(metric="return", at_least=5.0, average_over=4)),
        (3, Until(metric="return", at_least=6.0, average_over=4)),
    ],
)
async def test_no_episode_begins_behind_the_one_that_ends_the_phase(harness, size, until):
    more = {"episodes": 9, "until": (until,)}
    inner, first = await harness.play(name="inner", **more, **vector(size))
    (harness.folder / "run/agents/walker.state").unlink()
    await harness.pair(vector=size)
    outer, second = await harness.play(**more, vector=size, incarnation=2)
    assert told(outer) == told(inner)
    assert first.end == second.end


@pytest.mark.parametrize("size", [1, 3])
async def test_large_observations_are_the_same(harness, size):
    """They are in memory that the processes share; at first in the messages."""
    made = {"entry": "conductor_world:Film", "agent": "conductor_world:Watcher"}
    await harness.play(name="inner", episodes=7, **vector(size, **made))
    (harness.folder / "run/agents/walker.state").unlink()
    await harness.pair(vector=size, **made)
    records, _ = await harness.play(name="outer", episodes=7, vector=size, incarnation=2)
    assert {record.outcome for record in records} == {"terminated"}
    inner, outer = (
        trajectories.read(harness.folder / "run", phase).drop_columns(["phase", "worker", "weight_version"])
        for phase in ("inner", "outer")
    )
    assert len(inner) == 7 * 5
    assert inner.equals(outer)

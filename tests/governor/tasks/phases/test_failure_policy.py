"""What a phase of episodes on a real Ray bears of failures."""

from __future__ import annotations

import pytest

from governor.messages import Failures
from tests.support.in_process_commands import outcomes
from tests.support.tasks.ray_episodes import Phases, once_each, pids, seeds, with_params

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def phases(harness):
    return Phases(harness)


async def test_a_phase_on_ray_ends_when_more_fail_than_it_bears(phases):
    command = phases.command(episodes=3000, workers=2, failures=Failures(at_most=10))
    command = with_params(command, fault="raise", bad=seeds(command, *range(3000)))
    records, end = await phases.play(command)
    assert (end.end, end.exceeded) == ("failures", "failures.at_most of 10")
    assert 11 <= outcomes(records).count("failed") <= 22, "the other worker's chunk may have as many"
    assert outcomes(records).count("cancelled") <= 2


@pytest.mark.parametrize("fault", ["raise", "die"])
async def test_a_failed_episode_on_ray_is_played_again_and_only_that_attempt_counts(phases, tmp_path, fault):
    """With "die" its runner exits, which costs no attempt of `failures.retry`."""
    begun, once = tmp_path / "begun", tmp_path / "once"
    command = phases.command(episodes=40, workers=2, failures=Failures(at_most=0, retry={"user": 1}))
    bad = seeds(command, 7)
    command = with_params(command, fault=fault, bad=bad, begun=str(begun), once=str(once), at=3)
    records, end = await phases.play(command)
    assert (end.end, end.failures, set(outcomes(records))) == ("max_episodes", 0, {"terminated"})
    assert once_each(records, 40)
    assert len(pids(begun)) == 2
    assert phases.steps(command)["episode"].to_pylist() == [index for index in range(40) for _ in range(5)]

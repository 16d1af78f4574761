"""Ray's own functions with `run_exp` and `TaskRef`, as scripts made for AgentLab call them."""

from __future__ import annotations

import concurrent.futures
import time

import pytest

from governor.tasks import TaskFailed, poll_for_timeout, run_exp
from governor.tasks.agentlab.session import GraphSession
from tests.support.living import lives
from tests.support.user_code.experiments import Exp, story_of


@pytest.fixture(scope="module")
def ray(harness):
    import ray

    yield ray
    if GraphSession._shared is not None:
        GraphSession._shared.close()


@pytest.fixture
def alone(ray):
    """Tasks of Ray's own find CPUs."""
    from governor.tasks import release_runners

    release_runners()


def test_ray_get_gives_the_value_of_a_reference(ray):
    first, second = run_exp.remote(Exp("a", "give", (1, [2]))), run_exp.remote(Exp("b", "give", None))
    assert ray.get(first) == (1, [2])
    assert ray.get([second, first, first], timeout=30) == [None, (1, [2]), (1, [2])]


def test_ray_get_raises_what_failed_as_soon_as_it_has(ray):
    bad = run_exp.remote(Exp("bad", "fail"))
    after = run_exp.remote(Exp("after"), bad)
    for reference, outcome in ((bad, "failed"), (after, "upstream_failed")):
        with pytest.raises(TaskFailed) as caught:
            ray.get(reference)
        assert caught.value.outcome == outcome


def test_ray_get_waits_no_longer_than_its_timeout(ray):
    late = run_exp.remote(Exp("late", "sleep", 600))
    for taken in (late, [late]):
        with pytest.raises(
            ray.exceptions.GetTimeoutError, match=r"late pending> has not ended within 0\.05 s"
        ):
            ray.get(taken, timeout=0.05)
    assert poll_for_timeout({"late": late}, 0.1)["late"].outcome == "timed_out"


def test_of_references_it_can_be_waited_for_the_first(ray):
    late, quick = run_exp.remote(Exp("late", "sleep", 600)), run_exp.remote(Exp("quick"))
    done, _ = concurrent.futures.wait(
        [late.future, quick.future], timeout=60, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert done == {quick.future}
    poll_for_timeout({"late": late}, 0.1)


@pytest.mark.parametrize(
    "options", [None, {"num_cpus": 1}], ids=["ray.remote(f)", "ray.remote(num_cpus=1)(f)"]
)
def test_ray_remote_takes_run_exp(ray, alone, options):
    remote = ray.remote(run_exp) if options is None else ray.remote(**options)(run_exp)
    first = remote.options(name="first").remote(Exp("first", "give", (1, 2)), avg_step_timeout=5)
    second = remote.options(name="second").remote(Exp("second", "give", 3), first)
    assert ray.get([first, second], timeout=60) == [(1, 2), 3]
    assert ray.wait([first, second], num_returns=2, timeout=60)[1] == []
    with pytest.raises(ValueError, match="bad luck"):
        ray.get(remote.remote(Exp("bad", "fail"), first), timeout=60)
    assert ray.get(run_exp.remote(Exp("ours", "give", 4), second)) == 4, "ours comes after theirs"


def test_tasks_of_plain_ray_are_ended_at_their_limit_too(ray, alone, tmp_path):
    """AgentLab's own `execute_task_graph`, with these functions."""
    remote, story = ray.remote(run_exp), tmp_path / "story"
    tasks = {
        "hangs": remote.options(name="hangs").remote(Exp("hangs", "sleep", 600, story=story)),
        "good": remote.options(name="good").remote(Exp("good", "give", 1)),
    }
    ray.wait([tasks["good"]], timeout=60)
    found = poll_for_timeout(tasks, timeout=1.0, poll_interval=0.1)
    assert found["good"] == 1
    assert found["hangs"].outcome == "timed_out"
    (begun,) = story_of(story)
    end = time.monotonic() + 10
    while lives(begun["pid"]):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_called_with_a_reference_that_failed_it_raises_what_failed(ray):
    with pytest.raises(TaskFailed, match="bad luck"):
        run_exp(Exp("after"), run_exp.remote(Exp("bad", "fail")))

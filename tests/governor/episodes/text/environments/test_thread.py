"""Text environments that cannot be pickled: AIEvoBox's calls in process, with threads that may hang."""

import threading

from structlog.testing import capture_logs

from tests.support.language_models.text_stage import SECONDS
from tests.support.language_models.users_of_aievobox import play_local
from tests.support.user_code.text_answers import Locked


async def test_inproc_request_json_in_a_thread_leaves_none(stage):
    before = set(threading.enumerate())
    environment = Locked()
    interactor, result = await play_local(stage, environment)
    assert (result, interactor.hung_threads) == ({"own_0": 6.0}, 0)
    (thread,) = environment.threads
    assert thread is not threading.main_thread()
    thread.join(SECONDS)
    assert {one for one in set(threading.enumerate()) - before if one.name.startswith("environment")} == set()


async def test_inproc_request_json_that_hangs_is_nan_counted_logged_and_not_used_again(stage):
    stuck, free = Locked(hangs=True), Locked()
    with capture_logs() as logged:
        interactor, result = await play_local(stage, stuck, stuck, free, env_http_timeout_s=0.3)
    first, second, third = interactor.episodes
    try:
        assert (first.outcome, second.outcome, third.outcome) == ("timed_out", "failed", "terminated")
        assert first.reason == "environment.step: no answer within 0.3 s; its thread is left behind"
        assert "did not return from a call of an earlier episode" in second.reason
        assert str(result["own_0"]) == str(result["own_1"]) == "nan"
        assert (result["own_2"], stuck.taken) == (6.0, 1)
        assert interactor.hung_threads == 1
        assert [line["hung"] for line in logged if line["event"] == "environment.thread_left"] == [1]
    finally:
        stuck.go.set()
    for thread in stuck.threads:
        thread.join(SECONDS)
    assert interactor.hung_threads == 0


async def test_inproc_request_json_that_hangs_in_two_episodes_at_once_is_counted_twice(stage):
    stuck = Locked(hangs=True)
    stuck.taken = 1  # both hang at once
    with capture_logs() as logged:
        interactor, _ = await play_local(stage, stuck, stuck, env_http_timeout_s=0.3, max_workers=2)
    try:
        assert interactor.hung_threads == 2
        assert [line["hung"] for line in logged if line["event"] == "environment.thread_left"] == [1, 2]
    finally:
        stuck.go.set()


async def test_inproc_request_json_that_hangs_at_the_deadline_is_left_behind_too(stage):
    stuck = Locked(hangs=True)
    try:
        interactor, _ = await play_local(stage, stuck, episode_timeout=0.3)
        assert interactor.episodes[0].outcome == "timed_out"
        assert interactor.hung_threads == 1
    finally:
        stuck.go.set()


async def test_inproc_request_json_that_raises_fails_its_episode_alone(stage):
    class Raises(Locked):
        def step(self, action):
            raise SystemExit("no such door")

    interactor, result = await play_local(stage, Raises(), Locked())
    assert "step: SystemExit: no such door" in interactor.episodes[0].reason
    assert result["own_1"] == 6.0

"""The table of a runner's life: every pair of state and cause, and random stories that obey the world."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.tasks.runners.states import TABLE, Action, Cause, RunnerState, step

CONNECTED = [RunnerState.LOCAL, RunnerState.CUT_OFF, RunnerState.REMOTE]
ALIVE = [RunnerState.STARTING, *CONNECTED]
PAIRS = list(product(RunnerState, Cause))


@pytest.mark.parametrize(("state", "cause"), PAIRS, ids=lambda each: each.name)
def test_every_pair_has_an_answer_and_an_action_goes_with_its_state(state, cause):
    after, action = step(state, cause)
    leads_to = {
        Action.NONE: state,
        Action.WAIT_FOR_EXIT: RunnerState.CUT_OFF,
        Action.KILL: RunnerState.DYING,
        Action.DISMISS: RunnerState.DYING,
        Action.CLEAN_UP: RunnerState.DYING,
        Action.ANNOUNCE: RunnerState.GONE,
    }
    assert after is leads_to[action]
    if action is not Action.NONE:
        assert after is not state


def test_every_state_is_in_the_table():
    assert set(TABLE) == set(RunnerState)


@pytest.mark.parametrize("state", ALIVE, ids=lambda each: each.name)
def test_an_idle_one_is_ended_by_ray_and_kept_only_where_its_process_is_known(state):
    assert step(state, Cause.DISMISSED) == (RunnerState.DYING, Action.DISMISS)
    assert (step(state, Cause.KEPT)[1] is Action.ANNOUNCE) is (state is RunnerState.LOCAL)


def test_a_kept_one_that_is_not_back_in_time_is_ended_unless_it_was():
    assert step(RunnerState.STARTING, Cause.NOT_BACK) == (RunnerState.DYING, Action.DISMISS)
    for state in set(RunnerState) - {RunnerState.STARTING}:
        assert step(state, Cause.NOT_BACK) == (state, Action.NONE)


@pytest.mark.parametrize("state", ALIVE, ids=lambda each: each.name)
@pytest.mark.parametrize("cause", [Cause.KILLED, Cause.TASK_FAILED], ids=lambda each: each.name)
def test_what_is_not_wanted_or_not_served_any_more_is_killed_in_every_state(state, cause):
    assert step(state, cause) == (RunnerState.DYING, Action.KILL)


@pytest.mark.parametrize("cause", Cause, ids=lambda each: each.name)
def test_a_runner_that_is_gone_stays_gone(cause):
    assert step(RunnerState.GONE, cause) == (RunnerState.GONE, Action.NONE)


@pytest.mark.parametrize(
    "cause",
    [each for each in Cause if each not in {Cause.NOT_CREATED, Cause.CLEANED_UP}],
    ids=lambda each: each.name,
)
def test_nothing_but_its_own_end_hurries_a_runner_that_is_dying(cause):
    assert step(RunnerState.DYING, cause) == (RunnerState.DYING, Action.NONE)


def test_a_runner_here_is_known_by_its_process_alone_one_elsewhere_by_its_stream_and_its_call():
    assert step(RunnerState.LOCAL, Cause.CALL_ENDED)[1] is Action.NONE
    assert step(RunnerState.LOCAL, Cause.STREAM_ENDED) == (RunnerState.CUT_OFF, Action.WAIT_FOR_EXIT)
    assert step(RunnerState.CUT_OFF, Cause.STILL_RUNNING)[1] is Action.KILL
    assert step(RunnerState.CUT_OFF, Cause.EXITED)[1] is Action.CLEAN_UP
    assert step(RunnerState.LOCAL, Cause.STILL_RUNNING)[1] is Action.NONE
    for cause in (Cause.CALL_ENDED, Cause.STREAM_ENDED):
        assert step(RunnerState.REMOTE, cause)[1] is Action.CLEAN_UP


def test_a_runner_that_never_connected_is_cleaned_up_when_its_call_ends_and_announced_at_once_when_none_was_made():
    assert step(RunnerState.STARTING, Cause.CALL_ENDED) == (RunnerState.DYING, Action.CLEAN_UP)
    assert step(RunnerState.STARTING, Cause.NOT_CREATED) == (RunnerState.GONE, Action.ANNOUNCE)
    assert step(RunnerState.DYING, Cause.NOT_CREATED) == (RunnerState.GONE, Action.ANNOUNCE)


@given(st.sampled_from(ALIVE), st.lists(st.sampled_from(Cause)))
def test_whatever_happens_a_runner_is_ended_at_most_once_and_announced_once(state, causes):
    """A runner that is being ended reports when it is cleaned up; the world may report anything else at any time."""
    actions = []
    for cause in causes:
        if cause is Cause.CLEANED_UP and state is not RunnerState.DYING:
            continue
        state, action = step(state, cause)
        actions.append(action)
    if state in ALIVE:
        state, action = step(state, Cause.KILLED)
        actions.append(action)
    state, action = step(state, Cause.CLEANED_UP)
    actions.append(action)
    assert state is RunnerState.GONE
    assert actions.count(Action.ANNOUNCE) == 1
    assert sum(actions.count(each) for each in (Action.KILL, Action.DISMISS, Action.CLEAN_UP)) <= 1

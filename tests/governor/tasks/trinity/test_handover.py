"""Settings, models and tasks of a scheduler's user: what is taken, and what is refused with a clear error."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from governor.tasks import (
    DynamicTimeout,
    OverRollout,
    RolloutCoordinator,
    RunnerWrapper,
    Scheduler,
    SchedulerConfig,
)

EXPLORER = SimpleNamespace(
    name="explorer",
    runner_per_model=3,
    max_timeout=900,
    max_retry_times=1,
    max_repeat_times_per_runner=2,
    over_rollout=SimpleNamespace(ratio=0.25, wait_after_min=5.0, return_partial_tasks=True),
    dynamic_timeout=SimpleNamespace(enable=True, warmup_min_steps=2, ratio=4.0),
    rollout_model=SimpleNamespace(engine_num=2),
    auxiliary_models=[SimpleNamespace(engine_num=1), SimpleNamespace(engine_num=3)],
)
TRINITY = SimpleNamespace(explorer=EXPLORER, monitor=SimpleNamespace(detailed_stats=True), ray_namespace="x")


@pytest.mark.parametrize("kind", [Scheduler, RolloutCoordinator])
def test_the_config_of_trinity_is_taken(kind):
    made = kind(TRINITY)
    assert made.config == SchedulerConfig(
        runner_per_model=3,
        max_timeout=900,
        max_retry_times=1,
        max_repeat_times_per_runner=2,
        over_rollout=OverRollout(0.25, 5.0, True),
        dynamic_timeout=DynamicTimeout(enable=True, warmup_min_steps=2, ratio=4.0),
        detailed_stats=True,
    )
    scheduler = getattr(made, "scheduler", made)
    assert (scheduler.rollout_model, scheduler.auxiliary_models) == ([0, 1], [[0], [0, 1, 2]])
    assert (scheduler.runner_num, scheduler.default_timeout, len(scheduler.runners)) == (6, 1800, 6)
    assert Scheduler(TRINITY, ["url"]).rollout_model == ["url"], "what is given goes before"


def test_what_the_config_of_trinity_does_not_have_is_as_in_ours():
    """An older version of theirs."""
    older = SimpleNamespace(explorer=SimpleNamespace(over_rollout=SimpleNamespace(ratio=0.5)))
    assert Scheduler(older).config == SchedulerConfig(over_rollout=OverRollout(ratio=0.5))


def test_settings_that_make_no_sense_are_refused_wherever_they_come_from():
    with pytest.raises(ValueError, match="runner_per_model"):
        Scheduler(SimpleNamespace(explorer=SimpleNamespace(runner_per_model=0)))


@pytest.mark.parametrize("config", [7, {"explorer": 1}, SimpleNamespace(explorer=None)])
def test_another_kind_of_config_is_refused(config):
    with pytest.raises(TypeError, match="config must be a SchedulerConfig, or Trinity-RFT's Config"):
        Scheduler(config)


@pytest.mark.parametrize("models", [{"rollout_model": [object()]}, {"auxiliary_models": [["url", object()]]}])
def test_a_model_that_cannot_be_sent_is_refused(models):
    with pytest.raises(TypeError, match="a model must be plain data, such as the URL of its endpoint"):
        Scheduler(**models)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"rollout_model": "http://localhost:8000/v1"}, "rollout_model must be a list of models, not str"),
        ({"rollout_model": {"url": "x"}}, "rollout_model must be a list of models, not dict"),
        ({"auxiliary_models": "http://judge"}, "auxiliary_models must be a list of lists of models, not str"),
        (
            {"auxiliary_models": ["http://judge"]},
            r"auxiliary_models\[0\] must be a list of models, not str: 'http://judge'",
        ),
    ],
)
def test_a_model_in_place_of_a_list_is_refused(models, told):
    """A text is a sequence too: there would be runners for each of its letters."""
    with pytest.raises(TypeError, match=told):
        Scheduler(**models)


def test_models_may_come_from_an_iterator():
    scheduler = Scheduler(None, iter("ab"), iter([iter("c")]))
    assert (scheduler.rollout_model, scheduler.auxiliary_models) == (["a", "b"], [["c"]])


def test_a_runner_takes_a_list_of_auxiliary_models():
    with pytest.raises(TypeError, match="auxiliary_models must be a list of models, not str: 'judge'"):
        RunnerWrapper(0, "url", "judge")


def test_names_and_fields_are_those_that_users_know():
    from governor import tasks

    wrapper = tasks.TaskWrapper("task", 1)
    assert (wrapper.sub_task_num, wrapper.finished_sub_task_num, wrapper.total_runs) == (1, 0, 0)
    assert tasks.TaskWrapper("task", 1, 2, 1, 3, 4, [{}], [b"x"], "bad", True).experience_payloads == [b"x"]
    assert tasks.CompletedTaskResult(1, "t", tasks.Status(1, 1)).experience_payloads == []
    assert tasks.RunningTaskState(wrapper, 3).restart_runner_on_cancel
    state = tasks.BatchState(1, "train", 2)
    assert (state.statuses, state.min_wait_num, state.state, state.final_result) == (
        {},
        None,
        "pending",
        None,
    )
    assert [each.value for each in tasks.BatchLifecycleState] == [
        "pending",
        "running",
        "finalizing",
        "finalized",
        "aborted",
    ]

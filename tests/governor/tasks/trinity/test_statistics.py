"""Figures agree to the last bit with the plain way to make them, and the event loop goes on turning meanwhile."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import time
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.tasks import Scheduler, Task, TaskWrapper
from governor.tasks.trinity.statistics import (
    calculate_task_level_metrics,
    eval_prefix,
    subset_sizes,
    summarise_batch,
    summarise_tasks,
)
from governor.tasks.trinity.views import BatchView

numbers = st.floats(-1e6, 1e6) | st.integers(-1000, 1000) | st.sampled_from([0.0, 1.0])


def best_and_worst_by_the_book(values, size):
    """Mean of max and of min over resamples from the global stream."""
    np.random.seed(42)  # noqa: NPY002  # the legacy stream is what is compared with
    drawn = [
        [values[i] for i in np.random.choice(len(values), size=size, replace=True)]  # noqa: NPY002
        for _ in range(1000)
    ]
    return np.mean([np.max(each) for each in drawn]), np.mean([np.min(each) for each in drawn])


def eval_by_the_book(runs):
    by_key = {}
    for run in runs:
        for key, value in run.items():
            by_key.setdefault(key, []).append(value)
    expected = {}
    for key, values in by_key.items():
        n = len(values)
        expected |= {f"{key}/mean@{n}": np.mean(values), f"{key}/std@{n}": np.std(values)}
        sizes = [size for size in (2, 4, 8, 16, 32, 64, 128) if size < n] + [n]
        for size in sizes if n > 1 else []:
            best, worst = best_and_worst_by_the_book(values, size)
            expected |= {f"{key}/best@{size}": best, f"{key}/worst@{size}": worst}
    return expected


def aggregated(tasks, **kind):
    """The metrics of a batch without its prefix and its count."""
    found = of_batch(tasks, finished=0, **kind)
    return {
        key.removeprefix("rollout/").removeprefix("eval/1/"): value
        for key, value in found.items()
        if not key.endswith("finished_task_count")
    }


def of_batch(tasks, *, finished, batch_id=1, is_eval=False, detailed_stats=False):
    return summarise_batch(
        tasks, batch_id=batch_id, is_eval=is_eval, finished=finished, detailed_stats=detailed_stats
    )


def same(found, expected):
    """Equal to the last bit, NaN being equal to NaN."""
    return found.keys() == expected.keys() and all(
        found[key] == expected[key] or (math.isnan(found[key]) and math.isnan(expected[key])) for key in found
    )


class TestTasks:
    def test_training_is_the_mean(self):
        runs = [{"score": 1.0, "steps": 3}, {"score": 0.0, "steps": 4}, {"score": 0.0}]
        assert calculate_task_level_metrics(runs, is_eval=False) == {"score": 1 / 3, "steps": 3.5}

    def test_names_of_an_evaluation(self):
        found = calculate_task_level_metrics([{"score": float(i)} for i in range(6)], is_eval=True)
        assert list(found) == [
            "score/mean@6",
            "score/std@6",
            "score/best@2",
            "score/worst@2",
            "score/best@4",
            "score/worst@4",
            "score/best@6",
            "score/worst@6",
        ]
        assert (found["score/mean@6"], found["score/std@6"]) == (2.5, np.std(range(6)))

    def test_a_single_run_has_no_best(self):
        assert calculate_task_level_metrics([{"a": 2}], is_eval=True) == {"a/mean@1": 2.0, "a/std@1": 0.0}

    @pytest.mark.parametrize(
        ("n", "sizes"),
        [
            (0, []),
            (1, []),
            (2, [2]),
            (3, [2, 3]),
            (4, [2, 4]),
            (5, [2, 4, 5]),
            (16, [2, 4, 8, 16]),
            (17, [2, 4, 8, 16, 17]),
        ],
    )
    def test_subset_sizes(self, n, sizes):
        assert subset_sizes(n) == sizes

    def test_times_are_plain_means(self):
        runs = [{"time/run": 1.0, "rollout/time/run_execution": 2.0, "runtime/x": 1.0}] * 2
        found = calculate_task_level_metrics(runs, is_eval=True)
        assert {"time/run": 1.0, "rollout/time/run_execution": 2.0}.items() <= found.items()
        assert "runtime/x/best@2" in found

    def test_what_is_no_number_is_ignored(self):
        runs = [
            {"a": 1, "b": "2", "c": None, "d": [1], "e": 1j, "f": True, "g": np.float32(0.5), "h": np.int8(3)}
        ]
        assert calculate_task_level_metrics(runs, is_eval=False) == {"a": 1.0, "f": 1.0, "g": 0.5, "h": 3.0}

    def test_n_counts_the_values_of_the_key(self):
        found = calculate_task_level_metrics(
            [{"a": 1.0}, {"a": "failed"}, {"b": 1.0}, {"a": 0.0}], is_eval=True
        )
        assert {key.split("@")[1] for key in found if key.startswith("a/mean")} == {"2"}
        assert "b/mean@1" in found

    @pytest.mark.parametrize("is_eval", [True, False])
    @pytest.mark.parametrize("runs", [[], [{}], [{}, {"a": "x"}]])
    def test_nothing_gives_nothing(self, runs, is_eval):
        assert calculate_task_level_metrics(runs, is_eval=is_eval) == {}

    @given(st.lists(st.dictionaries(st.sampled_from("abc"), numbers, max_size=3), max_size=20))
    @settings(max_examples=settings.default.max_examples // 3)
    def test_evaluation_equals_the_plain_way(self, runs):
        assert calculate_task_level_metrics(runs, is_eval=True) == eval_by_the_book(runs)

    def test_evaluation_equals_the_plain_way_for_many_runs(self):
        runs = [{"a": value} for value in np.random.RandomState(1).normal(size=150).tolist()]
        assert calculate_task_level_metrics(runs, is_eval=True) == eval_by_the_book(runs)

    def test_the_global_random_state_is_left_alone(self):
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        calculate_task_level_metrics([{"a": 1.0}] * 5, is_eval=True)
        assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002

    def test_a_nan_is_not_hidden(self):
        found = calculate_task_level_metrics([{"a": 1.0}, {"a": math.nan}, {"b": 1.0}], is_eval=True)
        assert all(math.isnan(value) for key, value in found.items() if key.startswith("a/") and "@2" in key)
        assert "a/mean@2" in found
        assert found["b/mean@1"] == 1.0
        assert math.isnan(calculate_task_level_metrics([{"a": 1.0}, {"a": math.nan}], is_eval=False)["a"])

    def test_infinities_and_huge_integers_warn_of_nothing(self):
        runs = [{"a": math.inf, "b": 10**400}, {"a": 1.0, "b": -(10**400)}]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = calculate_task_level_metrics(runs, is_eval=True)
        assert found["a/mean@2"] == math.inf
        assert math.isnan(found["b/mean@2"])


class TestBatches:
    def test_train(self):
        tasks = [{"a": 1.0, "b": 2.0}, {"a": 3.0}, {}]
        assert aggregated(tasks) == {
            "a/mean": 2.0,
            "a/max": 3.0,
            "a/min": 1.0,
            "b/mean": 2.0,
            "b/max": 2.0,
            "b/min": 2.0,
        }
        assert of_batch([{"a": 1.0}], finished=3) == {
            "rollout/a/mean": 1.0,
            "rollout/a/max": 1.0,
            "rollout/a/min": 1.0,
            "rollout/finished_task_count": 3.0,
        }

    def test_eval(self):
        tasks = [{"a/mean@2": 1.0}, {"a/mean@2": 4.0}, {"a/mean@1": 7.0}]
        assert aggregated(tasks, is_eval=True) == {"a/mean@2": 2.5, "a/mean@1": 7.0}
        assert aggregated(tasks[:2], is_eval=True, detailed_stats=True) == {
            "a/mean@2/mean": 2.5,
            "a/mean@2/max": 4.0,
            "a/mean@2/min": 1.0,
            "a/mean@2/std": 1.5,
        }
        assert of_batch(tasks, batch_id="12/gsm8k", is_eval=True, finished=3) == {
            "eval/gsm8k/a/mean@2": 2.5,
            "eval/gsm8k/a/mean@1": 7.0,
            "eval/gsm8k/finished_task_count": 3.0,
        }

    @pytest.mark.parametrize(
        ("batch_id", "prefix"),
        [("7/aime", "eval/aime"), ("7/aime/2024", "eval/aime/2024"), ("bench", "eval/bench"), (7, "eval/7")],
    )
    def test_prefix(self, batch_id, prefix):
        assert eval_prefix(batch_id) == prefix

    def test_an_empty_batch_counts(self):
        assert of_batch([], finished=0) == {"rollout/finished_task_count": 0.0}
        assert of_batch([], batch_id="1/x", is_eval=True, finished=0) == {"eval/x/finished_task_count": 0.0}

    def test_one_nan_does_not_blank_the_batch_and_is_counted(self):
        tasks = [{"a": 1.0}, {"a": math.nan}, {"a": 3.0}]
        assert aggregated(tasks) == {
            "a/nan_count": 1.0,
            "a/mean": 2.0,
            "a/max": 3.0,
            "a/min": 1.0,
        }
        assert aggregated(tasks, is_eval=True) == {"a/nan_count": 1.0, "a": 2.0}

    def test_nothing_but_nan_is_nan(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = aggregated([{"a": math.nan}] * 2, is_eval=True, detailed_stats=True)
        assert found.pop("a/nan_count") == 2.0
        assert len(found) == 4
        assert all(math.isnan(value) for value in found.values())


def a_batch(*, tasks, runs, keys=4, seed=0):
    draw = random.Random(seed)
    names = ["correct", *(f"score{i}" for i in range(keys - 1))]
    return [
        [
            {name: float(draw.random() < 0.4) if name == "correct" else draw.random() for name in names}
            for _ in range(runs)
        ]
        for _ in range(tasks)
    ]


async def gaps_of_a_ticker(work):
    """The result of `work`, and how long the event loop computed between two turns of a ticker beside it, longest
    first. Processor time: when another process has the processor, that is not the loop's doing.
    """
    ticks: list[float] = []
    running = asyncio.ensure_future(work)
    while not running.done():
        ticks.append(time.thread_time())
        await asyncio.sleep(0.001)
    ticks.append(time.thread_time())
    return running.result(), sorted(np.diff(ticks).tolist(), reverse=True)


def completed(batch):
    """Tasks of an evaluation that have ended with these metrics."""
    return [
        TaskWrapper(Task("m:f", is_eval=True), 1, task_id=str(index), metrics=runs)
        for index, runs in enumerate(batch)
    ]


class TestManyTasks:
    def test_equal_one_after_the_other(self):
        draw = random.Random(5)
        tasks = a_batch(tasks=300, runs=7)
        for runs in tasks:
            del runs[draw.randrange(1, 8) :]
            runs[0] |= {"time/run": draw.random(), "rare": draw.random(), "text": "x"}
        for is_eval in (True, False):
            expected = [calculate_task_level_metrics(runs, is_eval=is_eval) for runs in tasks]
            found = summarise_tasks([(runs, is_eval) for runs in tasks])
            assert all(same(*pair) for pair in zip(found, expected, strict=True))

    def test_nothing(self):
        assert summarise_tasks([]) == []

    @pytest.mark.parametrize(
        ("tasks", "runs", "keys"), [(2200, 16, 4), (2, 4096, 2), (50, 16, 100)], ids=["usual", "long", "wide"]
    )
    async def test_the_event_loop_goes_on_turning(self, tasks, runs, keys):
        """2,200 tasks of 16 runs are promised to hold the loop for 20 ms at most."""
        scheduler = Scheduler()
        view = scheduler._batches[1] = BatchView(1, split=None, estimator=scheduler._timeout_estimator)
        view.completed = {
            task.task_id: task for task in completed(a_batch(tasks=tasks, runs=runs, keys=keys))
        }
        gc.collect()
        found, gaps = await gaps_of_a_ticker(scheduler.peek_results(1))
        assert len(found) == tasks
        assert len(gaps) > 10
        assert gaps[0] < 0.010

    def test_memory_stays_small(self):
        batch = a_batch(tasks=20, runs=2000, keys=2)
        tracemalloc.start()
        summarise_tasks([(runs, True) for runs in batch])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**25 + 16e6, "the cache of resamples, and little more"


def test_the_end_of_a_name_says_how_its_values_become_one():
    """As Trinity-RFT's names with a suffix: over the runs of a task, then over the tasks of a batch."""
    runs = [
        {"tokens:sum": 3, "peak:max": 2.0, "low:min": 5.0, "version:last": 7, "score:mean": 1.0, "a:b": 1.0},
        {"tokens:sum": 4, "peak:max": 9.0, "low:min": 1.0, "version:last": 8, "score": 2.0, ":sum": 3.0},
    ]
    ends = {"tokens:sum": 7.0, "peak:max": 9.0, "low:min": 1.0, "version:last": 8.0}
    train = calculate_task_level_metrics(runs, is_eval=False)
    assert train == {**ends, "score": 1.5, "a:b": 1.0, ":sum": 3.0}
    evaluation = calculate_task_level_metrics(runs, is_eval=True)
    assert {key: evaluation[key] for key in ends} == ends
    assert evaluation["score/mean@2"] == 1.5
    other = {"tokens:sum": 1.0, "peak:max": float("nan"), "low:min": 2.0, "version:last": 6.0}
    for is_eval, prefix in ((False, "rollout"), (True, "eval/x")):
        found = summarise_batch([ends, other], batch_id="1/x", is_eval=is_eval, finished=2)
        figures = {
            "tokens/sum": 8.0,
            "peak/max": 9.0,
            "peak/max/nan_count": 1.0,
            "low/min": 1.0,
            "version/last": 6.0,
        }
        assert found == {f"{prefix}/{key}": value for key, value in figures.items()} | {
            f"{prefix}/finished_task_count": 2.0
        }

"""Numbers that tasks report while they run: on record while they run and with their end, whatever the end is."""

from __future__ import annotations

import pytest

from governor.messages import TaskReported

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


async def test_the_last_value_is_a_metric_of_the_task_however_it_ends(harness, task):
    result = await harness.run(
        task("trains", "reports", args={"values": [3.0, float("nan"), 1.0]}),
        task("returns", "reports", args={"values": [3.0], "returned": 7.0}),
        task("fails", "reports", args={"values": [3.0], "fault": True}),
        task("times_out", "reports", args={"values": [3.0], "seconds": 30}, timeout=1.0),
        task("odd", "reports", args={"values": ["high"]}),
        task("none", "give", args={"value": 1}),
    )
    found = {name: result[name].metrics for name in ("trains", "returns", "fails", "times_out", "none")}
    assert found == {
        "trains": {"loss": 1.0, "loss.nonfinite": 1.0},
        "returns": {"loss": 7.0},
        "fails": {"loss": 3.0},
        "times_out": {"loss": 3.0},
        "none": {},
    }
    assert result["times_out"].outcome == "timed_out"
    assert "context.report: 'loss' is of type str, not a number" in result["odd"].error
    heard = {each.task: each.values["loss"] for each in result.of(TaskReported)}
    assert heard.keys() == {"trains", "returns", "fails", "times_out"}
    sums = heard["trains"]
    assert (sums.count, sums.mean, sums.low, sums.high, sums.last, sums.others) == (2, 2.0, 1.0, 3.0, 1.0, 1)


async def test_a_long_task_is_heard_of_while_it_runs(harness, task):
    result = await harness.run(task("long", "reports_for", args={"seconds": 2.5}))
    heard = result.of(TaskReported)
    assert 2 <= len(heard) <= 4, "the last one at its end"
    before = 0
    for each in heard:
        assert each.values["step"].before == before == each.values["step"].low
        before += each.values["step"].count
    first = heard[0]
    assert (first.task, first.run, first.attempt) == ("long", 0, 1)
    sums = first.values["step"]
    assert sums.count > 1
    assert (sums.low, sums.high) == (0.0, sums.last)
    assert result["long"].metrics["step"] == heard[-1].values["step"].last == before - 1
    assert 0 < heard[0].values["step"].seconds < heard[-1].values["step"].seconds < 60

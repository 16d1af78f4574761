"""The daemon's figures in OpenMetrics and Prometheus text, read by prometheus_client."""

from __future__ import annotations

import pytest
from prometheus_client import parser as plain_text
from prometheus_client.openmetrics import parser as open_metrics

from governor.metrics import COUNTED, FAMILIES, STRETCHES, Family, Metrics, exposition, histogram

MEASURED = {
    "build": {'1.0"\n\\': 1},
    "runs": {"running": 2, "queued": 3},
    "oldest_queued_seconds": 0.25,
    "event_loop_stretch_seconds": histogram(dict.fromkeys((*STRETCHES, float("inf")), 2), total=1.5),
}


def read(text, *, openly):
    parse = open_metrics if openly else plain_text
    return {family.name: family for family in parse.text_string_to_metric_families(text)}


@pytest.mark.parametrize("openly", [True, False])
def test_prometheus_client_reads_each_family_with_type_and_help(openly):
    counted = Metrics()
    counted.count("runs_ended", "failed")
    counted.episode_ended("terminated", 12)
    found = read(exposition({**counted.measured(), **MEASURED}, open_metrics=openly), openly=openly)
    for family in FAMILIES:
        name = family.full_name if openly or family.kind != "info" else f"{family.full_name}_info"
        kind = family.kind if openly or family.kind != "info" else "gauge"
        assert (found[name].type, found[name].documentation) == (kind, family.help)
        assert found[name].unit == (family.unit if openly else "")
    samples = {sample.name: sample for each in found.values() for sample in each.samples if not sample.labels}
    assert samples["run_governor_episode_steps_total"].value == 12
    assert samples["run_governor_oldest_queued_seconds"].value == 0.25
    assert samples["run_governor_event_loop_stretch_seconds_sum"].value == 1.5
    buckets = [
        each.value for each in found["run_governor_event_loop_stretch_seconds"].samples if "le" in each.labels
    ]
    assert buckets == [2, 4, 6, 8, 10, 12]
    ended = {each.labels["outcome"]: each.value for each in found["run_governor_runs_ended"].samples}
    assert ended == {"finished": 0, "failed": 1, "aborted": 0}
    states = {each.labels["state"]: each.value for each in found["run_governor_runs"].samples}
    assert (states["running"], states["queued"], states["held"]) == (2, 3, 0)


def test_values_of_labels_are_escaped():
    found = read(exposition(MEASURED, open_metrics=True), openly=True)
    assert found["run_governor_build"].samples[0].labels == {"version": '1.0"\n\\'}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_are_those_that_prometheus_asks_for(family: Family):
    assert family.full_name.islower()
    assert not family.name.endswith("_total")
    assert family.help.endswith(".")
    assert not family.unit or family.name.endswith(f"_{family.unit}")
    assert family.unit in ("", "seconds", "bytes")
    assert family.label not in ("run", "uid", "id", "run_id", "name", "task")


def test_each_counter_begins_at_zero_with_all_its_values():
    shown = Metrics().measured()
    assert shown["tasks"]["crashed"] == 0
    assert set(shown) == {family.name for family in COUNTED}
    assert {family.kind for family in COUNTED} == {"counter"}
    assert len({family.full_name for family in FAMILIES}) == len(FAMILIES)


def test_a_counter_that_is_not_declared_is_an_error():
    with pytest.raises(KeyError):
        Metrics().count("nonsense")

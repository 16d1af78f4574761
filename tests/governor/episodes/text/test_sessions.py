import json
import signal

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from governor.episodes import trajectories
from governor.episodes.records import merge
from governor.episodes.text.sessions import DataManager
from tests.support.full_disk import full_beyond
from tests.support.language_models.recorded_sessions import record, session
from tests.support.recorded_steps import run_code

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.language_models.recorded_sessions import DataManager, record, session
manager = DataManager(Path(sys.argv[1]))
first, second = session(manager), session(manager)
for number in range(150):
    record(manager, first, number)
    record(manager, second, number)
manager.end_session(first, outcome="terminated")
record(manager, second, 150)
os.kill(os.getpid(), signal.SIGKILL)
"""


def frame(folder):
    return trajectories.read(folder, "interactor").to_pandas()


@pytest.mark.parametrize("finalized", [False, True])
def test_sessions_are_read_one_by_one_with_their_ends(tmp_path, finalized):
    manager = DataManager(tmp_path)
    first, second, third = session(manager), session(manager, group_id="g"), session(manager)
    for number in range(2):
        record(manager, second, number, weight_version=number)
        record(manager, first, number)
    record(manager, third)
    manager.end_session(second, outcome="terminated")
    manager.end_session(first, outcome="failed", reason="no answer")
    manager.close()
    if finalized:
        trajectories.finalize(tmp_path, "interactor")
        assert pd.read_parquet(tmp_path / "episodes/interactor.parquet").equals(frame(tmp_path))
    found = frame(tmp_path).astype(object).where(lambda cells: cells.notna(), None)
    assert found.session.tolist() == [first.id] * 2 + [second.id] * 2 + [third.id]
    assert found.step_id.tolist() == [0, 1, 0, 1, 0]
    assert found.outcome.tolist() == ["failed"] * 2 + ["terminated"] * 2 + [None]
    assert found.reason.tolist() == ["no answer"] * 2 + [None] * 3
    assert found.group_id.tolist() == [None, None, "g", "g", None]
    assert found.weight_version.tolist() == [None, None, 0, 1, None]
    assert (first.total_reward, first.steps) == (1.0, 2)
    row = found.iloc[0]
    assert (row.env_id, row.env_name, row.llm_model, row.response, row.step_reward) == (
        "3",
        "maths",
        "m",
        "4",
        0.5,
    )
    assert json.loads(row.messages) == [{"role": "user", "content": "2 + 2?"}]
    assert json.loads(row.env_state) == {"n": 1}


def test_nothing_of_a_session_is_lost_when_the_process_is_killed(tmp_path):
    assert run_code(KILLED, tmp_path) == -signal.SIGKILL
    found = frame(tmp_path)
    steps = sorted(found.groupby("session").step_id.apply(list), key=len)
    assert steps == [list(range(150)), list(range(151))]
    assert found.outcome.value_counts().to_dict() == {"terminated": 150}


def test_a_rerun_does_not_mix_with_the_run_before(tmp_path):
    for _ in range(3):
        manager = DataManager(tmp_path)
        one = session(manager)
        record(manager, one, 0)
        record(manager, one, 1)
        manager.end_session(one, outcome="terminated")
        manager.close()
        trajectories.finalize(tmp_path, "interactor")
    found = frame(tmp_path)
    assert found.session.nunique() == 3
    assert found.step_id.tolist() == [0, 1] * 3
    assert found.started.is_monotonic_increasing


def test_managers_of_one_folder_keep_out_of_each_others_way(tmp_path):
    managers = [DataManager(tmp_path) for _ in range(3)]
    for manager in managers:
        one = session(manager)
        record(manager, one)
        manager.end_session(one, outcome="terminated")
    assert frame(tmp_path).session.nunique() == 3
    for manager in managers:
        manager.close()


def test_sessions_that_began_in_the_same_microsecond_are_both_kept(tmp_path):
    managers = [DataManager(tmp_path), DataManager(tmp_path)]
    sessions = [session(manager) for manager in managers]
    sessions[1].started = sessions[0].started
    for number in range(2):
        for manager, one in zip(managers, sessions, strict=True):
            record(manager, one, number)
    for outcome, manager, one in zip(("failed", "terminated"), managers, sessions, strict=True):
        manager.end_session(one, outcome=outcome)
        manager.close()
    trajectories.finalize(tmp_path, "interactor")
    more = DataManager(tmp_path)
    record(more, session(more))
    more.close()
    trajectories.finalize(tmp_path, "interactor")
    found = frame(tmp_path)
    outcomes = found.groupby("session").outcome.unique().to_dict()
    assert (outcomes[sessions[0].id], outcomes[sessions[1].id]) == (["failed"], ["terminated"])
    assert found.groupby("session").step_id.apply(list).to_dict()[sessions[0].id] == [0, 1]
    assert len(found) == 5


def circle():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (None, None),
        ({"grid": np.arange(3)}, {"grid": [0, 1, 2]}),
        ({"at": object}, {"at": "<class 'object'>"}),
        ({(1, 2): "x", "y": 1}, {"(1, 2)": "x", "y": 1}),
        ({"half": "\ud800"}, {"half": "\ud800"}),
        (float("nan"), None),
        (circle(), "[[...]]"),
    ],
    ids=["none", "array", "object", "key", "surrogate", "nan", "circle"],
)
def test_any_state_is_kept_as_json(tmp_path, state, kept):
    manager = DataManager(tmp_path)
    record(manager, session(manager), env_state=state, response="half \ud800")
    manager.close()
    row = (
        trajectories.read(tmp_path, "interactor").to_pylist()[0] if state is None else frame(tmp_path).iloc[0]
    )
    assert row["response"] == "half \\ud800"
    text = row["env_state"]
    assert (text if text is None else json.loads(text)) == kept


def test_a_full_disk_costs_what_did_not_fit(tmp_path):
    manager = DataManager(tmp_path)
    one = session(manager)
    record(manager, one, 0)
    size = next((tmp_path / "episodes").iterdir()).stat().st_size
    with full_beyond(size + 100), pytest.raises(OSError, match="File too large"):
        record(manager, one, 1)
    assert (one.steps, one.total_reward) == (1, 0.5)
    manager.end_session(one, outcome="failed", reason="full")
    manager.close()
    assert frame(tmp_path)[["step_id", "outcome"]].to_numpy().tolist() == [[0, "failed"]]


def test_many_sessions_of_several_workers_are_one_file_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "ROWS", 200)
    managers = [DataManager(tmp_path, phase="talk", worker=worker) for worker in range(3)]
    sessions = [managers[number % 3].create_session(env_id=number, env_name="maths") for number in range(120)]
    for step in range(5):
        for number, one in enumerate(sessions):
            record(managers[number % 3], one, step, response=f"{number} {step}")
    for number, one in enumerate(sessions):
        managers[number % 3].end_session(
            one,
            outcome="failed" if number % 50 == 7 else "terminated",
            reason="late" if number % 50 == 7 else "",
        )
    for manager in managers:
        manager.close()
    before = trajectories.read(tmp_path, "talk").to_pylist()
    path = trajectories.finalize(tmp_path, "talk")
    assert [row["response"] for row in before] == [
        f"{number} {step}"
        for number, _ in sorted(enumerate(sessions), key=lambda each: (each[1].started, each[1].id))
        for step in range(5)
    ]
    assert {(row["env_id"], row["reason"]) for row in before if row["outcome"] == "failed"} == {
        ("7", "late"),
        ("57", "late"),
        ("107", "late"),
    }
    assert trajectories.read(tmp_path, "talk").to_pylist() == before
    metadata = pq.read_metadata(path)
    assert {metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)} == {256, 88}

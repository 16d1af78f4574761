import numpy as np
import pytest
from structlog.testing import capture_logs

from governor.episodes import step_info
from governor.episodes.remote import wire
from governor.episodes.step_info import plain_info, with_info
from governor.episodes.transition import Transition


@pytest.fixture(autouse=True)
def nothing_logged_before(monkeypatch):
    monkeypatch.setattr(step_info, "_logged", set())


def test_plain_data_pass_and_share_nothing():
    board = np.arange(4)
    info = {
        "lives": np.int64(3),
        "on": True,
        "name": "a",
        "none": None,
        "board": board,
        "deep": {"x": (1, [2.5])},
    }
    found = plain_info(info)
    board[:] = 9
    info["deep"]["x"] = 0
    assert found.pop("board").tolist() == [0, 1, 2, 3]
    assert found == {"lives": 3, "on": True, "name": "a", "none": None, "deep": {"x": [1, [2.5]]}}
    assert type(found["lives"]) is int


def test_what_is_no_plain_data_is_left_out_and_logged_once():
    endless = {}
    endless["self"] = endless
    info = {
        "good": 1, "object": object(), 7: "number", "deep": {"set": {1}, "good": 2}, "texts": np.array(["a"]),
        "list": [1, object()], "huge": 2**70, "endless": endless,
    }  # fmt: skip
    with capture_logs() as logs:
        found, _ = plain_info(info), plain_info(info)
    assert (found["good"], found["deep"]) == (1, {"good": 2})
    assert {"object", "texts", "list", "huge", 7} & found.keys() == set()
    named = [entry["key"] for entry in logs]
    assert len(named) == len(set(named))
    assert {"object", "7", "deep.set", "texts", "list", "huge"} <= set(named)


def test_all_of_it_can_be_sent():
    info = plain_info(
        {"a": {"b": [np.arange(3, dtype=np.float32), b"x"]}, "big": 2**64 - 1, "c": np.complex128(1)}
    )
    back = wire.decode_agent_request(wire.encode(wire.ActFrame(1, 0, 0.0, info))).info
    assert back["a"]["b"][0].tolist() == [0.0, 1.0, 2.0]
    assert back["big"] == 2**64 - 1


def test_what_is_no_dict_has_nothing():
    assert plain_info(None) == {}
    assert with_info(None)({"a": 1}) == (None, {"a": 1})
    assert with_info(len)({"a": 1}) == (1, {"a": 1})


def test_a_transition_without_it_says_how_to_get_it():
    step = Transition(
        observation=0, action=0, reward=0.0, next_observation=1, terminated=False, truncated=False
    )
    assert (dict(step.info), dict(step.extras), step.info.get("lives")) == ({}, {}, None)
    with pytest.raises(KeyError, match=r"'lives': only agents with an attribute needs_info = True"):
        step.info["lives"]

"""What environments may answer, and what not."""

import json

import pytest

from governor.episodes.text.environments.environment import (
    EnvironmentFault,
    TextStep,
    decoded,
    prompt_of,
    step_of,
)

GOOD = {"reward": 1, "terminated": False, "truncated": True, "info": {"a": [1]}}


def test_a_step():
    assert step_of(GOOD) == TextStep(reward=1.0, terminated=False, truncated=True, info={"a": [1]})
    assert isinstance(step_of(GOOD).reward, float)
    assert step_of({**GOOD, "info": None}).info == {}
    assert step_of({name: GOOD[name] for name in ("reward", "terminated", "truncated")}).info == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None is no mapping"),
        ([1.0, False, False, {}], "is no mapping"),
        ({}, "no reward, terminated, truncated"),
        ({**GOOD, "reward": float("nan")}, "the reward is nan"),
        ({**GOOD, "reward": float("-inf")}, "the reward is -inf"),
        ({**GOOD, "reward": 10**400}, "the reward is inf"),
        ({**GOOD, "reward": True}, "the reward is True, not a number"),
        ({**GOOD, "reward": "1"}, "the reward is '1', not a number"),
        ({**GOOD, "reward": None}, "the reward is None, not a number"),
        ({**GOOD, "terminated": 0}, "terminated is 0, neither"),
        ({**GOOD, "truncated": "no"}, "truncated is 'no', neither"),
        ({**GOOD, "info": []}, "info is \\[\\], no mapping"),
    ],
)
def test_no_step(value, said):
    with pytest.raises(EnvironmentFault, match=said) as caught:
        step_of(value)
    assert "\n" not in caught.value.reason


def test_a_prompt():
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": []}]
    assert prompt_of(messages) == messages
    assert prompt_of([{"role": "user", "content": [{"type": "text", "text": "go"}]}])
    assert prompt_of([]) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None is no list of messages"),
        ({"role": "user", "content": "go"}, "is no list of messages"),
        ("go", "'go' is no list"),
        (["go"], "message 0, 'go', is no mapping with a role"),
        ([{"role": "user", "content": "go"}, {"content": "go"}], "message 1"),
        ([{"role": 1, "content": "go"}], "message 0"),
        ([{"role": "user", "content": 3}], "the content of message 0 is 3, not text"),
        (["x" * 10_000], r"message 0, 'x+\.\.\., is"),
    ],
)
def test_no_prompt(value, said):
    with pytest.raises(EnvironmentFault, match=said) as caught:
        prompt_of(value)
    assert len(caught.value.reason) < 400


def test_json_with_what_python_servers_write():
    assert decoded(b'{"loss": NaN, "best": -Infinity}', where="step")["best"] == float("-inf")
    assert decoded(json.dumps("a\U0001f600b").encode(), where="step") == "a\U0001f600b"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"<html>", b"\xff", b"[" * 100_000, b"9" * 5000, b'{"a": "\\uD800"}']
)
def test_no_json(data):
    with pytest.raises(EnvironmentFault, match="step: malformed JSON: ") as caught:
        decoded(data, where="step")
    assert len(caught.value.reason) < 1000

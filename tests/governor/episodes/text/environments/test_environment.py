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
    assert step_of([1, False, True, {"a": [1]}]) == step_of(GOOD)


@pytest.mark.parametrize(
    ("value", "step", "lacking"),
    [
        ({"reward": 0.5}, (0.5, False, False, {}), "terminated truncated"),
        ({"terminated": True}, (0.0, True, False, {}), "reward truncated"),
        (
            {"reward": None, "terminated": None, "truncated": 1},
            (0.0, False, True, {}),
            "reward terminated",
        ),
        ({"reward": "1.5", "terminated": 0, "truncated": 0}, (1.5, False, False, {}), ""),
        ({"reward": True, "info": "done"}, (1.0, False, False, "done"), "terminated truncated"),
        ([None, True, False, None], (0.0, True, False, {}), "reward"),
        ({"info": []}, (0.0, False, False, []), "reward terminated truncated"),
    ],
)
def test_what_is_missing_or_null_is_zero_and_false_and_info_is_anything(value, step, lacking):
    assert step_of(value) == TextStep(*step, tuple(lacking.split()))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None is no mapping"),
        ([1.0, False, False], "is no mapping"),
        ({}, "{} is no mapping"),
        ({"detail": "no such environment"}, "is no mapping with reward"),
        ({**GOOD, "reward": float("nan")}, "the reward is nan"),
        ({**GOOD, "reward": float("-inf")}, "the reward is -inf"),
        ({**GOOD, "reward": 10**400}, "the reward is inf"),
        ({**GOOD, "reward": "much"}, "the reward is 'much', not a number"),
        ({**GOOD, "reward": {"a": 1}}, "the reward is {'a': 1}, not a number"),
        ({**GOOD, "terminated": [False]}, "terminated is \\[False\\], neither"),
        ({**GOOD, "truncated": "no"}, "truncated is 'no', neither"),
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
    assert prompt_of({"messages": messages, "task": 1}) == messages
    assert prompt_of({"messages": "go"}) == {"messages": "go"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
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

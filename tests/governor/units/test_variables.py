"""The lines of an `env_file`, and the names that runs can't set."""

from __future__ import annotations

import pytest

from governor.units import variables

FILE = """\
# a comment

PLAIN=some words
  SPACED = value   # with a comment
export EXPORTED=1
HASH=a#b
EMPTY=
ONLY_COMMENT= # nothing
SINGLE='$HOME \\n # stays'  # gone
DOUBLE="a \\"quoted\\"\\tword\\n\\$HOME"
URL=http://host:1/?a=b&c=d
TWICE=first
TWICE=second
"""


def test_each_form_of_a_line():
    assert variables.parse(FILE) == (
        {
            "PLAIN": "some words",
            "SPACED": "value",
            "EXPORTED": "1",
            "HASH": "a#b",
            "EMPTY": "",
            "ONLY_COMMENT": "",
            "SINGLE": "$HOME \\n # stays",
            "DOUBLE": 'a "quoted"\tword\n$HOME',
            "URL": "http://host:1/?a=b&c=d",
            "TWICE": "second",
        },
        [],
    )


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("hidden-value", "line 2 is not NAME=VALUE"),
        ("1A=hidden-value", "line 2 is not NAME=VALUE"),
        ("A='hidden-value", "line 2: the value of A has a quote that is not closed, or text behind it"),
        ('A="hidden-value" b', "line 2: the value of A has a quote that is not closed, or text behind it"),
        ("A=hidden-value\0", "line 2: the value of A holds a zero byte"),
    ],
)
def test_a_fault_names_its_line_and_never_the_value(line, fault):
    assert variables.parse(f"B=1\n{line}\nC=2\n") == ({"B": "1", "C": "2"}, [fault])


@pytest.mark.parametrize(
    "name", ["GOVERNOR_RUN", "RUN_GOVERNOR_OUTPUT", "RAY_ADDRESS", "NOTIFY_SOCKET", "LISTEN_FDS"]
)
def test_names_that_the_governor_needs_are_refused(name):
    assert name in variables.refusal(name)
    found, faults = variables.parse(f"{name}=hidden-value\nA=1")
    assert found == {"A": "1"}
    assert len(faults) == 1
    assert name in faults[0]
    assert "hidden-value" not in faults[0]


@pytest.mark.parametrize("name", ["PATH", "CUDA_VISIBLE_DEVICES", "OPENAI_API_KEY", "ray_x", "PYTHONPATH"])
def test_others_are_not(name):
    assert variables.refusal(name) == ""

"""Placeholders in texts of a run file."""

import pytest

from governor.units import placeholders

VALUES = {"lr": 0.1, "name": "a b", "flags": [1, "x"], "on": True, "services.model.port": 20001}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("--lr={lr}", "--lr=0.1"),
        ("{name}{lr}", "a b0.1"),
        ("{flags} {on}", '[1, "x"] true'),
        ("http://localhost:{services.model.port}/v1", "http://localhost:20001/v1"),
        ("{{lr}} is text", "{lr} is text"),
        ("${lr} of a shell", "${lr} of a shell"),
        ('{"a": {}} {print $1} {1..3} {}', '{"a": {}} {print $1} {1..3} {}'),
    ],
)
def test_only_names_in_braces_are_filled_in(text, made):
    assert placeholders.filled(text, VALUES.__getitem__) == made


def test_names_are_those_that_are_filled_in():
    assert [*placeholders.names("{a} {{b}} ${c} {d.e} {f g}")] == ["a", "d.e"]

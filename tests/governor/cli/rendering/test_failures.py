"""Failures on a terminal: each traceback once, and nothing that user code wrote controls it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli import ask, cli
from governor.cli.rendering import failures as listing
from governor.cli.rendering.lines import clean_lines
from governor.messages import Failure, FailureList

TRACEBACK = "Traceback (most recent call last):\n\x1b[2J\tpaint()\nValueError: \x1b]0;title\x07 red\r gone"


def failure(event, **more):
    return Failure(
        event=event,
        at=1.0,
        what=f"episode {event}",
        outcome="failed",
        reason="no\x1b[31m",
        phase="train",
        **more,
    )


@pytest.fixture
def asked(monkeypatch):
    """What the daemon was asked for; it answers with three failures, and there are more."""
    seen = {}
    found = FailureList(
        uid="u1",
        failures=(
            failure(3, traceback="a"),
            failure(4, traceback="a"),
            failure(7, traceback="b"),
            failure(9),
        ),
        tracebacks={"a": TRACEBACK},
        more=True,
    )

    class Daemon:
        def failures(self, uid, **how):
            seen.update(how, uid=uid)
            return found

    monkeypatch.setattr(ask, "ask", lambda broker, question: question(Daemon()))
    return seen


def failures(*arguments):
    return CliRunner().invoke(cli, ["results", "u1", "--failures", *arguments], prog_name="governor")


def test_each_traceback_is_shown_once(asked):
    text = failures("--phase", "train", "--limit", "3", "--after", "2").stdout
    assert asked == {"uid": "u1", "phase": "train", "after": 2, "limit": 3}
    assert text.count("paint()") == 1
    assert "(the traceback of #3)" in text
    assert "was not kept" in text
    assert text.endswith("more: governor results u1 --failures --phase 'train' --limit 3 --after 9\n")


def test_no_control_sequence_reaches_a_terminal(asked):
    assert not set(failures().stdout) & {"\x1b", "\r", "\x07"}
    assert clean_lines("  a\n\x1b[31mb\x07") == "  a\nb"


def test_json_is_the_whole_page(asked):
    found = json.loads(failures("--json").stdout)
    assert found["tracebacks"] == {"a": TRACEBACK}
    assert [one["event"] for one in found["failures"]] == [3, 4, 7, 9]


@pytest.mark.parametrize(
    "arguments", [["--of", "episodes"], ["--format", "csv"], ["--output", "x"], ["--limit", "0"]]
)
def test_options_that_do_not_fit(asked, arguments):
    assert failures(*arguments).exit_code == 2


def test_limit_and_after_are_for_failures(asked):
    assert CliRunner().invoke(cli, ["results", "u1", "--limit", "3"]).exit_code == 2


def test_the_hint_of_a_run_without_a_daemon_works_beside_another_one(capsys):
    listing.show_hint("u1", state_dir=Path("/a folder/of u1"))
    said = capsys.readouterr().err
    sockets = f"{tempfile.gettempdir()}/governor-u1"
    assert f"governor serve --state-dir '/a folder/of u1' --runtime-dir {sockets}, and then " in said
    assert said.endswith(f"governor --broker {sockets}/broker.sock results u1 --failures\n")
    listing.show_hint("u1")
    assert capsys.readouterr().err.endswith("tracebacks: governor results u1 --failures\n")

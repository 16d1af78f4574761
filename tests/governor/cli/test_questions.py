"""`list` and `status` of a daemon that has more runs than a screen has lines."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from click.testing import CliRunner

from governor.cli import ask, cli
from governor.messages import Changed, RunCounts, RunList
from tests.governor.cli.recorded import REPORT, STATUS

QUEUED = tuple(msgspec.structs.replace(STATUS, uid=f"q{number}", state="queued") for number in range(3))


class Daemon:
    """An executor that answers with one page, and keeps what it was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def list(self, limit, *, after=None, **only):
        self.asked.append((limit, after))
        self.only = only
        return self.answers["page"]

    async def status(self, uid=None):
        return self.answers["report"]

    async def pause(self, *given, **named):
        self.asked.append((given, named))
        return self.answers["changed"]

    continue_ = pause


def answer(monkeypatch, daemon, *arguments):
    monkeypatch.setattr(ask, "ask", lambda _, question: asyncio.run(question(daemon)))
    return CliRunner().invoke(cli, arguments, prog_name="governor")


@pytest.mark.parametrize("more", [True, False, None])
def test_where_there_are_more_runs_the_last_line_says_how_to_list_them(monkeypatch, more):
    daemon = Daemon(page=RunList(runs=QUEUED, more=more))
    done = answer(monkeypatch, daemon, "list", "--limit", "3", "--after", "q9")
    assert done.exit_code == 0
    assert daemon.asked == [(3, "q9")]
    told = "governor: there are more: `governor list --after q2`"
    assert (done.output.splitlines()[-1] == told) == bool(more)
    done = answer(monkeypatch, daemon, "list", "--json")
    assert daemon.asked[-1] == (100, None)
    assert json.loads(done.output)["more"] is more
    only = ("--group", "g-a", "--label", "team=r l", "--state", "queued")
    done = answer(monkeypatch, daemon, "list", *only)
    assert daemon.only | {"group": "g-a", "labels": {"team": "r l"}, "state": "queued"} == daemon.only
    told = (
        "governor: there are more: `governor list --group g-a --label 'team=r l' --state queued --after q2`"
    )
    assert (done.output.splitlines()[-1] == told) == bool(more)


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        (RunCounts(in_work=1, queued=3, held=0, damaged=0), "1 run in work, 3 queued"),
        (
            RunCounts(in_work=2, queued=1500, held=1, damaged=4),
            "2 runs in work, 1500 queued (the first 3 are shown), 1 held, 4 damaged",
        ),
    ],
)
def test_status_counts_all_runs_and_shows_the_first_ones(monkeypatch, counts, line):
    report = msgspec.structs.replace(REPORT, runs=(*REPORT.runs, *QUEUED), counts=counts)
    done = answer(monkeypatch, Daemon(report=report), "status")
    assert line in done.output.splitlines()
    assert line not in answer(monkeypatch, Daemon(report=report), "status", "q1").output
    done = answer(monkeypatch, Daemon(report=report), "status", "--json")
    assert json.loads(done.output)["counts"]["queued"] == counts.queued


def test_an_older_daemon_counts_nothing(monkeypatch):
    assert "in work" not in answer(monkeypatch, Daemon(report=REPORT), "status").output


@pytest.mark.parametrize(
    ("arguments", "asked", "answers"),
    [
        (
            ["pause", "q1", "--hard", "--reason", "lunch"],
            (("q1", "lunch"), {"hard": True, "dry_run": False}),
            ("run q1 is paused", "run q1 is paused already"),
        ),
        (["continue", "q1"], (("q1", ""), {"dry_run": False}), ("run q1 goes on", "run q1 is not paused")),
    ],
)
def test_a_verb_says_what_has_changed(monkeypatch, arguments, asked, answers):
    for changed, text in zip((True, False), answers, strict=True):
        daemon = Daemon(changed=Changed(uid="q1", changed=changed, state="running"))
        done = answer(monkeypatch, daemon, *arguments)
        assert (done.exit_code, done.output, daemon.asked) == (0, f"{text}\n", [asked])
        done = answer(monkeypatch, daemon, *arguments, "--json")
        assert json.loads(done.output)["changed"] is changed


@pytest.mark.parametrize("verb", ["pause", "continue"])
def test_a_dry_run_says_what_would_change(monkeypatch, verb):
    daemon = Daemon(changed=Changed(uid="q1", changed=True, state="running", dry_run=True))
    done = answer(monkeypatch, daemon, verb, "q1", "--dry-run")
    assert daemon.asked[-1][1]["dry_run"]
    assert done.output == "run q1 is running: that would change it\n"


def test_a_paused_run_is_shown_as_paused(monkeypatch):
    paused = msgspec.structs.replace(QUEUED[0], paused=True)
    done = answer(monkeypatch, Daemon(page=RunList(runs=(paused, QUEUED[1]))), "list")
    assert [("paused" in line, "queued" in line) for line in done.output.splitlines()[-2:]] == [
        (True, False),
        (False, True),
    ]

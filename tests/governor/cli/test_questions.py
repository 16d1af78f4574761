"""`list` and `status` of a daemon that has more runs than a screen has lines."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from click.testing import CliRunner

from governor.cli import ask, cli
from governor.messages import RunCounts, RunList
from tests.governor.cli.recorded import REPORT, STATUS

QUEUED = tuple(msgspec.structs.replace(STATUS, uid=f"q{number}", state="queued") for number in range(3))


class Daemon:
    """An executor that answers with one page, and keeps what it was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def list(self, limit, *, after=None):
        self.asked.append((limit, after))
        return self.answers["page"]

    async def status(self, uid=None):
        return self.answers["report"]


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

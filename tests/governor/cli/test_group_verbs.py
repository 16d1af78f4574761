"""The verbs for groups of runs, of a daemon that answers as it is told to; and what is shown before anything is submitted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from governor.cli import ask, cli
from governor.group_results import GroupResult
from governor.messages import (
    CellStatus,
    GroupChanged,
    GroupProgress,
    GroupReport,
    RunList,
    RunStatus,
    SubmittedGroup,
    WatchEnd,
)

FILE = """\
name: sums
phases: [{name: add, tasks: [{id: add, call: "operator:add", args: {lr: 0.1}}]}]
"""


def cell(number, state="finished", value=1.0, reason=""):
    return CellStatus(
        cell=number,
        uid=f"r{number}",
        state=state,
        params={"a.lr": [0.1, 0.5][number // 2], "seed": number % 2},
        metrics={} if state != "finished" else {"return_mean": value},
        seconds=1.5,
        reason=reason,
    )


REPORT = GroupReport(
    uid="g-a",
    name="sums",
    submitted_at=1.0,
    paths=("a.lr", "seed"),
    max_parallel=None,
    fail_fast=False,
    cells=(cell(0, value=1.0), cell(1, value=2.0), cell(2, value=5.0), cell(3, "failed", reason="no [luck]")),
)


class Daemon:
    def __init__(self, outcome="failed", report=REPORT):
        self.outcome = outcome
        self.report = report
        self.asked = []

    def __getattr__(self, name):
        async def asked(*given, **named):
            self.asked.append((name, given, named))
            if name == "results_group":
                return GroupResult.of(self.report)
            if name == "submit_group":
                return SubmittedGroup(uid="g-a", runs=("r0", "r1", "r2", "r3"))
            if name == "submit":
                return "r9"
            verb = name.removesuffix("_group")
            runs = ("n1", "n2") if verb == "resume" else ()
            return GroupChanged(uid="g-a", changed=2, runs=runs, dry_run=named.get("dry_run", False))

        return asked

    async def watch_group(self, uid):
        yield GroupProgress(uid="g-a", counts={"finished": 1, "running": 3}, ended=(REPORT.cells[0],))
        # again, after a restart of the daemon
        yield GroupProgress(uid="g-a", counts={"finished": 3, "failed": 1}, ended=REPORT.cells)
        yield WatchEnd(outcome=self.outcome)


@pytest.fixture
def answer(monkeypatch):
    def answer(*arguments, daemon=None):
        daemon = daemon or Daemon()
        monkeypatch.setattr(ask, "ask", lambda _, question: asyncio.run(question(daemon)))
        done = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="governor")
        done.asked = daemon.asked
        return done

    return answer


@pytest.fixture
def file(tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    return tmp_path / "run.yaml"


def test_a_watch_shows_each_run_once_and_ends_by_the_worst(answer):
    done = answer("watch", "g-a")
    assert done.exit_code == 1
    shown = [line for line in done.stdout.splitlines() if line.startswith("run ")]
    assert shown == [
        "run r0 (lr=0.1, seed=0) finished in 1.5s",
        "run r1 (lr=0.1, seed=1) finished in 1.5s",
        "run r2 (lr=0.5, seed=0) finished in 1.5s",
        "run r3 (lr=0.5, seed=1) failed in 1.5s: no [luck]",
    ]
    assert answer("watch", "g-a", daemon=Daemon("finished")).exit_code == 0
    assert answer("watch", "g-a", daemon=Daemon("interrupted")).exit_code == 75
    lines = [json.loads(line) for line in answer("watch", "g-a", "--json").stdout.splitlines()]
    assert [line["type"] for line in lines] == ["GroupProgress", "GroupProgress", "WatchEnd"]


def test_results_have_a_line_for_runs_that_differ_in_their_seeds(answer, tmp_path):
    shown = answer("results", "g-a", "--metric", "return_mean").stdout.splitlines()
    assert [line.split() for line in shown if line.startswith("0.")] == [
        ["0.1", "2", "1.5", "±", "6.353"],
        ["0.5", "1", "finished,", "1", "failed", "5"],
    ]
    assert "best return_mean: lr 0.5 (5), runs r2 r3" in shown
    tie = msgspec.structs.replace(REPORT, cells=(cell(0, value=5.0), cell(2, value=5.0)))
    shown = answer("results", "g-a", "--metric", "return_mean", daemon=Daemon(report=tie)).stdout.splitlines()
    assert [line for line in shown if line.startswith("best")] == [
        "best return_mean: lr 0.1 (5), runs r0",
        "best return_mean: lr 0.5 (5), runs r2",
    ]
    lowest = answer("results", "g-a", "--metric", "return_mean", "--lowest", "--json")
    assert json.loads(lowest.stdout)["best"]["params"] == {"a.lr": 0.1}
    runs = answer("results", "g-a", "--of", "runs", "--format", "csv").stdout.splitlines()
    assert runs[0] == '"run","a.lr","seed","state","seconds","return_mean"'
    assert (len(runs), runs[4]) == (5, '"r3",0.5,1,"failed",1.5,')
    answer("results", "g-a", "--format", "parquet", "--output", tmp_path / "lines.parquet")
    assert (tmp_path / "lines.parquet").stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("results", "g-a", "--failures"), "are of one run"),
        (("results", "g-a", "--of", "steps"), "a group has no steps"),
        (("results", "r0", "--of", "runs"), "are of a group of runs"),
        (("results", "r0", "--metric", "return_mean"), "are of a group of runs"),
        (("results", "g-a", "--lowest"), "--lowest goes with --metric NAME"),
        (
            ("results", "g-a", "--metric", "loss"),
            "no run of group g-a has the metric 'loss'; there is return_mean",
        ),
        (("resume", "g-a", "--key", "k"), "--key is for one run"),
        (("list", "--label", "team"), "--label 'team' is not KEY=VALUE"),
    ],
)
def test_what_makes_no_sense_is_refused(answer, arguments, why):
    done = answer(*arguments)
    assert (done.exit_code, why in done.stderr) == (2, True), done.stderr


def test_verbs_that_steer_say_how_many_runs_they_changed(answer):
    assert answer("pause", "g-a", "--hard", "--dry-run").stdout == "2 runs of group g-a would change\n"
    assert answer("pause", "g-a", "--hard").asked == [
        ("pause_group", ("g-a", ""), {"hard": True, "dry_run": False})
    ]
    assert answer("continue", "g-a").stdout == "2 runs of group g-a go on\n"
    assert answer("abort", "g-a", "--reason", "x").stdout == "2 runs of group g-a are being aborted\n"
    assert answer("resume", "g-a").stdout == "n1\nn2\n"
    assert json.loads(answer("abort", "g-a", "--json").stdout)["changed"] == 2


def test_a_list_has_the_values_of_a_matrix_and_metrics(answer, monkeypatch):
    about = {
        "outcome": "finished",
        "reason": "",
        "waits_for": "nothing",
        "submitted_at": 1.0,
        "state": "ended",
    }
    runs = tuple(
        RunStatus(uid=one.uid, name="sums", group="g-a", params=one.params, metrics=one.metrics, **about)
        for one in REPORT.cells
    )
    daemon = Daemon()

    async def listed(limit, **asked):
        daemon.asked.append(asked)
        return RunList(runs=runs, more=True)

    daemon.list = listed
    shown = answer(
        "list", "--group", "g-a", "--metric", "return_mean", "--sort", "lr", "--descending", daemon=daemon
    )
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:6] == ["run", "name", "outcome", "lr", "seed", "return_mean"]
    assert [line.split()[3:6] for line in lines[2:6]] == [
        ["0.1", "0", "1"],
        ["0.1", "1", "2"],
        ["0.5", "0", "5"],
        ["0.5", "1", "-"],
    ]
    assert "a higher --limit" in shown.stderr
    assert {**daemon.asked[0], "sort": "lr", "descending": True} == daemon.asked[0]


def test_what_would_be_submitted_is_shown_and_what_is_submitted_is_a_group_or_a_run(answer, file):
    several = ("--set", "add.tasks.add.args.lr=0.1,0.5", "--set", "seed=range(7)")
    shown = answer("submit", file, *several, "--dry-run")
    assert shown.stdout.splitlines()[0] == f"{file}: 14 runs; nothing was submitted"
    assert shown.stdout.splitlines()[-1] == "4 more"
    assert shown.asked == []
    assert len(json.loads(answer("check", file, *several, "--json").stdout)["runs"]) == 14
    done = answer("submit", file, *several, "--key", "k")
    assert done.stdout == "g-a\n"
    [(name, (run,), named)] = done.asked
    assert (name, named, len(run.cells)) == ("submit_group", {"key": "k"}, 14)
    done = answer("submit", file, "--set", "seed=3", "--name", "other", "--label", "a=b")
    assert done.stdout == "r9\n"
    [(name, (run,), named)] = done.asked
    assert (name, run.seed, run.name, run.labels) == ("submit", 3, "other", {"a": "b"})
    assert (named["params"], named["folder"]) == ({"seed": 3}, file.parent)
    waited = answer("submit", file, *several, "--wait")
    assert waited.stdout.startswith("group g-a: 4 runs\nsums g-a: 4 runs\n")
    assert waited.exit_code == 1


def test_a_file_with_a_matrix_is_not_played_without_a_daemon(file):
    file.write_text(f"{FILE}matrix: {{seed: [1, 2]}}\n")
    command = [sys.executable, "-m", "governor", "run", file, "--state-dir", file.parent / "s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "has a matrix, it is a group of 2 runs: `governor submit`" in done.stderr

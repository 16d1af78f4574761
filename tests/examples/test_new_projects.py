"""What `governor init` writes runs as it is; each project shows what it is about."""

import json
import os
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from governor.cli import cli
from tests.support.pages.example_runs import REPOSITORY, result_of

pytestmark = pytest.mark.system


@pytest.fixture
def project(tmp_path):
    def make(kind):
        made = tmp_path / kind
        assert CliRunner().invoke(cli, ["init", str(made), "--with", kind]).exit_code == 0
        return made

    return make


@pytest.fixture
def port():
    """A port for one server. It stays bound, so that nothing else gets it; with SO_REUSEADDR the server may bind it, too."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@pytest.mark.ray
def test_the_agent_learns(project, tmp_path):
    train, evaluate, analyse = result_of(project("gym"), tmp_path)["phases"]
    [curve] = analyse["tasks"]
    assert curve["metrics"]["return_first"] < 5
    assert curve["metrics"]["return_last"] > 9
    assert evaluate["metrics"]["return_mean"] == 13
    assert train["episodes"] == {"terminated": 400}


@pytest.mark.ray
def test_one_of_the_tasks_has_a_time_out_and_a_retry(project, tmp_path):
    [phase] = result_of(project("tasks"), tmp_path)["phases"]
    attempts = {(task["task"], task["run"]): task["attempts"] for task in phase["tasks"]}
    assert {task["outcome"] for task in phase["tasks"]} == {"succeeded"}
    assert len(attempts) == 10
    assert attempts["measure", 2] == 2


def test_the_stand_in_for_a_model_wins_its_games(project, tmp_path, port):
    folder = project("llm")
    for name in ("fake_model.py", "run.yaml"):
        text = (folder / name).read_text()
        assert text.count("8102") == 1
        (folder / name).write_text(text.replace("8102", str(port)))
    done = subprocess.run(
        [sys.executable, "fake_model.py", sys.executable, "-m", "governor", "run", "run.yaml", "--json"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [phase] = json.loads(done.stdout.splitlines()[-1])["phases"]
    assert phase["metrics"]["return_mean"] == 1.0

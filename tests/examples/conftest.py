"""Fixtures: a command line with folders of its own, and a browser."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.pages import browser
from tests.support.pages.example_pages import look_at_both, served
from tests.support.pages.example_runs import examples_path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "frozen_lake"))


@pytest.fixture(scope="session")
def playwright(tmp_path_factory):
    browser.chromium()
    return browser.install(tmp_path_factory.mktemp("playwright"))


@pytest.fixture
def folder():
    """With a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="gr-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def governor(folder):
    """Calls the command line with folders of its own."""
    (folder / "r").mkdir(mode=0o700)
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "s"), "XDG_RUNTIME_DIR": str(folder / "r")}
    environ.pop("GOVERNOR_BROKER", None)

    def command(*arguments):
        return [sys.executable, "-m", "governor", *map(str, arguments)]

    def call(*arguments, code=0, seconds=300):
        done = subprocess.run(
            command(*arguments),
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert code in (None, done.returncode), done.stderr
        return done.stdout

    def begin(*arguments):
        return subprocess.Popen(
            command(*arguments), cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
        )

    def works(*arguments):
        return (
            subprocess.run(
                command(*arguments), cwd=folder, env=environ, capture_output=True, timeout=60, check=False
            ).returncode
            == 0
        )

    call.begin, call.works, call.environ = begin, works, environ
    return call


@pytest.fixture
def play_and_look(governor, folder, request):
    """Plays an example by a daemon, with other values of some keys; looks at its report and its live page where there is a browser; returns
    its result.
    """

    def play(example, *values):
        changed = [word for value in values for word in ("--set", value)]
        with served(governor):
            said = governor("submit", examples_path(example) / "run.yaml", *changed, "--wait")
            uid = re.search(r"run (\w+)", said)[1]
            if browser.find():
                look_at_both(uid, governor, request.getfixturevalue("playwright"), folder)
            return json.loads(governor("results", uid, "--json"))

    return play

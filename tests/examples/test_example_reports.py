"""The report and the live page of each example, in a real Chromium."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.example_runs import examples_path
from tests.support.report_documents import Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
EXAMPLES = ("frozen_lake", "cartpole", "rendezvous")
"""Those that need no packages and no servers of their own."""
LOOK = """
scrolled(page)
found["metrics"] = page.evaluate("Object.fromEntries([...document.querySelectorAll('[data-metric]')].map(each => [each.dataset.metric, each.dataset.value]))")
found["outcome"] = page.inner_text("#outcome .badge")
"""


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

    def call(*arguments):
        done = subprocess.run(
            command(*arguments),
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
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

    call.begin, call.works = begin, works
    return call


def ended(process):
    process.terminate()
    process.wait(60)


@pytest.mark.parametrize("example", EXAMPLES)
def test_reports_and_live_pages_of_examples(example, governor, playwright, folder):
    daemon = governor.begin("serve")
    try:
        while not governor.works("status"):
            assert daemon.poll() is None
        said = governor("submit", examples_path(example) / "run.yaml", "--wait")
        uid = re.search(r"run (\w+)", said)[1]
        result = json.loads(governor("results", uid, "--json"))
        governor("report", uid, "-o", "report.html")
        view = governor.begin("view", uid)
        try:
            url = view.stdout.readline().split()[1]
            for address in ((folder / "report.html").as_uri(), url):
                found = browser.visit(playwright, address, LOOK)
                assert (found["console"], found["elsewhere"], found["dialogs"]) == ([], [], [])
                metrics = {
                    f"{phase['name']} {name}": value
                    for phase in result["phases"]
                    for name, value in phase["metrics"].items()
                }
                shown = {
                    name: float(value) for name, value in found["metrics"].items() if value != "undefined"
                }
                assert shown == metrics
                assert result["outcome"] in found["outcome"]
        finally:
            view.send_signal(2)
            view.wait(30)
        assert Page(Path(folder / "report.html").read_text()).data["runs"][0]["missing"] == []
    finally:
        ended(daemon)

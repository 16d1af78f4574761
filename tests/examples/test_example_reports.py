"""The report and the live page of each example, in a real Chromium."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.example_runs import examples_path
from tests.support.report_documents import HOSTILE, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
NEEDS = {"ppo": ["torch"], "stable_baselines3": ["stable_baselines3"]}
RUN = """\
name: hostile
conductors:
  environments: {pole: {entry: "gymnasium:CartPole-v1"}}
  agents: {bad: {entry: "hostile:Agent"}}
phases:
  - name: train
    simulate: {environment: pole, agents: [bad], episodes: 6, transport: in_process}
    failures: {at_most: 100%}
"""
AGENT = """
class Agent:
    def __init__(self, **_):
        self.steps = 0

    def act(self, observation, *, explore):
        self.steps += 1
        print(SAID)
        if self.steps % 20 == 0:
            raise ValueError(SAID)
        return self.steps % 2
"""
RUN_OF_MANY = """\
name: many
conductors:
  environments: {lake: {entry: "gymnasium:FrozenLake-v1"}}
  agents: {walker: {entry: "many:Agent"}}
phases:
  - name: train
    simulate: {environment: lake, agents: [walker], episodes: 10000, transport: in_process}
  - name: fit
    tasks: [{id: fit, call: "many:fit", repeat: 10000}]
"""
MANY = """
class Agent:
    def __init__(self, *, observation_space, action_space, seed):
        action_space.seed(seed)
        self.space = action_space

    def act(self, observation, *, explore):
        return int(self.space.sample())

def fit():
    return {"loss": 0.5}
"""
LOOK = """
page.wait_for_selector("#run_file")
scrolled(page)
found["metrics"] = page.evaluate("Object.fromEntries([...document.querySelectorAll('[data-metric]')].map(each => [each.dataset.metric, each.dataset.value]))")
found["outcome"] = page.inner_text("#outcome .badge")
found["images"] = len(page.query_selector_all("img, iframe"))
found["text"] = page.inner_text("main")
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

    def call(*arguments, code=0):
        done = subprocess.run(
            command(*arguments),
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
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


def ended(process):
    process.terminate()
    process.wait(60)


def played_alone(governor, folder):
    """The example whose model and game are servers; returns the run and the options of a daemon that has it."""
    program = [sys.executable, str(examples_path("text_game") / "play.py"), "-q", "--state-dir", "state"]
    subprocess.run(program, cwd=folder, env=governor.environ, check=True, timeout=120, capture_output=True)
    [run] = (folder / "state" / "runs").iterdir()
    return run.name, ("--state-dir", "state")


@contextmanager
def served(governor, *options):
    daemon = governor.begin("serve", *options)
    try:
        while not governor.works("status"):
            assert daemon.poll() is None
        yield
    finally:
        ended(daemon)


def look_at_both(uid, governor, playwright, folder):
    """Report and live page have the metrics of the result; returns what was found on each."""
    result = json.loads(governor("results", uid, "--json"))
    governor("report", uid, "-o", "report.html")
    assert Page((folder / "report.html").read_text()).data["runs"][0]["missing"] == []
    metrics = {
        f"{phase['name']} {name}": value
        for phase in result["phases"]
        for name, value in phase["metrics"].items()
    }
    view = governor.begin("view", uid)
    both = []
    try:
        url = view.stdout.readline().split()[1]
        for address in ((folder / "report.html").as_uri(), url):
            found = browser.visit(playwright, address, LOOK)
            assert (found["console"], found["elsewhere"], found["dialogs"]) == ([], [], [])
            shown = {name: float(value) for name, value in found["metrics"].items() if value != "undefined"}
            assert shown == metrics
            assert result["outcome"] in found["outcome"]
            both.append(found)
    finally:
        view.send_signal(signal.SIGINT)
        view.wait(30)
    return both


@pytest.mark.parametrize("example", [path.parent.name for path in examples_path("").glob("*/run.yaml")])
def test_report_and_live_page_of_an_example(example, governor, playwright, folder):
    for name in NEEDS.get(example, ()):
        pytest.importorskip(name)
    if example == "text_game":
        uid, options = played_alone(governor, folder)
        with served(governor, *options):
            look_at_both(uid, governor, playwright, folder)
        return
    with served(governor):
        said = governor("submit", examples_path(example) / "run.yaml", "--wait")
        look_at_both(re.search(r"run (\w+)", said)[1], governor, playwright, folder)


def test_what_user_code_says_stays_text_on_both_pages(governor, playwright, folder):
    (folder / "hostile.py").write_text(f"SAID = {HOSTILE!r}\n{AGENT}")
    (folder / "run.yaml").write_text(RUN)
    with served(governor):
        said = governor("submit", "run.yaml")
        uid = re.search(r"(\w{8})", said)[1]
        governor("watch", uid, code=None)
        for found in look_at_both(uid, governor, playwright, folder):
            assert found["images"] == 0
            assert found["text"].count("</script><script>alert(1)</script><img src=x onerror=alert(2)>") >= 2


def test_ten_thousand_episodes_and_tasks_are_on_both_pages(governor, playwright, folder):
    (folder / "many.py").write_text(MANY)
    (folder / "run.yaml").write_text(RUN_OF_MANY)
    with served(governor):
        said = governor("submit", "run.yaml", "--wait")
        for found in look_at_both(re.search(r"run (\w+)", said)[1], governor, playwright, folder):
            assert found["text"].count("10,000") >= 2

"""AgentLab's own functions on this engine: with stand-ins for its modules, and with the package from the index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from structlog.testing import capture_logs

import governor.tasks
from governor.messages import OutputLine, TaskRecord
from governor.tasks import TaskFailed, script_output
from governor.tasks.agentlab import ray_tasks, use
from governor.tasks.agentlab.session import GraphSession
from governor.tasks.script_output import ScriptOutput
from tests.support.tasks import agentlab_package
from tests.support.user_code.experiments import Exp

ROOT = Path(__file__).parents[4]
THEIRS = "agentlab.experiments.graph_execution_ray"


@pytest.fixture
def stand_in(monkeypatch):
    """Its module; `statuses` of ExpResult are by the name of the folder."""
    found = {name: ModuleType(name) for name in ("agentlab", "agentlab.experiments", THEIRS)}
    loop = found["agentlab.experiments.loop"] = ModuleType("agentlab.experiments.loop")
    found[THEIRS].statuses = {}

    def result(folder):
        status, error = found[THEIRS].statuses.get(folder.name, ("done", None))
        return SimpleNamespace(status=status, summary_info={"err_msg": error})

    loop.ExpResult = result
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found[THEIRS]


def test_without_agentlab_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "agentlab", None)
    with pytest.raises(ModuleNotFoundError, match="install agentlab where this script runs"):
        use()


def test_its_module_has_our_functions(stand_in):
    stand_in.ray = "theirs"
    use()
    use()
    assert stand_in.ray == "theirs"
    for name in ("run_exp", "poll_for_timeout", "get_elapsed_time", "_episode_timeout"):
        assert getattr(stand_in, name) is getattr(governor.tasks, name)
    assert stand_in.execute_task_graph([]) == {}


def test_an_experiment_that_is_to_be_run_again_has_failed_and_others_have_run_after_it(
    harness, stand_in, tmp_path
):
    use()
    errs, stops, done = (Exp(name, "give", name) for name in ("errs", "stops", "done"))
    for each in (errs, stops, done):
        each.exp_dir = tmp_path / each.exp_id
    errs.exp_name = "player_on_errs"
    stand_in.statuses |= {"errs": ("error", "bad page" * 1000), "stops": ("incomplete", None)}
    after = Exp("after", "give", 4, depends_on=("errs", "stops"))
    try:
        with capture_logs() as logs:
            found = stand_in.execute_task_graph(
                (each for each in (errs, stops, done, after)), avg_step_timeout=30
            )
    finally:
        if GraphSession._shared is not None:
            GraphSession._shared.close()
    assert list(found) == ["errs", "stops", "done", "after"]
    assert (found["done"], found["after"]) == ("done", 4)
    assert isinstance(found["errs"], TaskFailed)
    assert found["errs"].outcome == found["stops"].outcome == "failed"
    assert found["errs"].record.error.startswith("bad page")
    assert len(found["errs"].record.error) <= 2000
    assert "neither terminated nor truncated" in str(found["stops"])
    told = [line["experiment"] for line in logs if line["event"] == "experiment.failed"]
    assert told == ["player_on_errs", "stops"]


def test_of_what_is_not_run_again_nothing_is_told(stand_in, monkeypatch, tmp_path):
    """`find_incomplete(include_errors=False)` hides experiments with errors behind a `run` that does nothing."""
    use()
    stand_in.statuses["errs"] = ("error", "bad page")
    monkeypatch.setattr(ray_tasks, "execute_task_graph", lambda experiments, _: {"errs": None})
    hidden = SimpleNamespace(exp_id="errs", exp_dir=tmp_path / "errs", is_dummy=True)
    with capture_logs() as logs:
        assert stand_in.execute_task_graph([hidden]) == {"errs": None}
    assert logs == []


def test_a_half_written_summary_costs_no_results(stand_in, monkeypatch, tmp_path):
    use()

    class ExpResult:
        def __init__(self, folder):
            self.folder = folder

        @property
        def status(self):
            path = self.folder / "summary_info.json"
            return json.loads(path.read_text()) if path.exists() else "incomplete"

    monkeypatch.setattr(sys.modules["agentlab.experiments.loop"], "ExpResult", ExpResult)
    results = {"done": 1, "full": TaskFailed(TaskRecord(task="full", run=0, outcome="timed_out")), "half": 2}
    experiments = [SimpleNamespace(exp_id=name, exp_dir=tmp_path / name) for name in results]
    for name, text in {"done": '"done"', "full": '{"n_steps": 3, "err', "half": '{"n_st'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary_info.json").write_text(text)
    monkeypatch.setattr(ray_tasks, "execute_task_graph", lambda *_: dict(results))
    found = stand_in.execute_task_graph(experiments)
    assert (found["done"], found["full"]) == (1, results["full"])
    assert found["half"].outcome == "failed"
    assert "half written, and was renamed summary_info.json.unreadable" in str(found["half"])
    assert [ExpResult(tmp_path / name).status for name in results] == ["done", "incomplete", "incomplete"]
    assert (tmp_path / "half" / "summary_info.json.unreadable").read_text() == '{"n_st'


def test_prints_have_the_name_of_their_experiment(stand_in, monkeypatch):
    use()
    shown = []
    monkeypatch.setattr(script_output, "_print", shown.append)
    lines = [
        OutputLine(at=0.0, conductor="", pid=1, stream="stdout", text="hello", task=task) for task in "ab"
    ]

    def run(experiments, avg_step_timeout):
        ScriptOutput._show(None, lines)
        return {each.exp_id: 1 for each in experiments}

    monkeypatch.setattr(ray_tasks, "execute_task_graph", run)
    named = SimpleNamespace(exp_id="a", exp_name="player_on_login_3")
    assert stand_in.execute_task_graph([named, SimpleNamespace(exp_id="b")]) == {"a": 1, "b": 1}
    ScriptOutput._show(None, lines)
    assert [each["task_name"] for each in shown] == ["player_on_login_3", "b", "a", "b"]


# -- the package --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package():
    folder = Path(tempfile.mkdtemp(prefix="agentlab-"))
    try:
        agentlab_package.install(folder)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def play(package, tmp_path):
    """Runs a script with the package; returns what it prints as JSON in its last line."""
    short = tempfile.mkdtemp(prefix="ray-")  # paths of sockets are limited
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, (package, ROOT, ROOT / "tests/support/user_code"))),
        "HOME": str(tmp_path),
        "AGENTLAB_EXP_ROOT": str(tmp_path / "studies"),
        "ONCE": str(tmp_path),
        "RAY_TMPDIR": short,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": os.environ["RAY_worker_niceness"],  # noqa: SIM112  # as `conftest` sets it
    }

    def play(program):
        (tmp_path / "main.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "main.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None

    yield play
    shutil.rmtree(short, ignore_errors=True)


STUDY = """
import json
from agentlab.experiments.study import Study
from governor.tasks.agentlab import use
from my_project import AGENT, benchmark

use()
study = Study([AGENT], benchmark(
    plays=[], errs=[], dies=[], cut=[], hangs=[], after_errs=["errs"], after_dies=["dies"]
), avg_step_timeout=4)
found = []
for launch in (1, 2):
    study.run(n_jobs=2, n_relaunch=1)
    counts = study.find_incomplete()
    found.append([counts, {each.env_args.task_name: each.status for each in study.exp_args_list}])
    study = Study.load(study.dir)
    study.find_incomplete()
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_study_finds_what_is_to_be_run_again_and_runs_it(play, tmp_path):
    (first_counts, first), (counts, second) = play(STUDY)
    assert first == {
        "plays": "done",
        "errs": "error",
        "dies": "incomplete",
        "cut": "incomplete",
        "hangs": "error",  # ended at its deadline, it has still written its summary
        "after_errs": "done",
        "after_dies": "incomplete",
    }
    assert first_counts == [5, 2]
    assert counts == [0, 0]
    assert set(second.values()) == {"done"}
    episodes = {name: len((tmp_path / name).read_text().splitlines()) for name in first}
    assert episodes == {
        "plays": 1,
        "errs": 2,
        "dies": 2,
        "cut": 2,
        "hangs": 2,
        "after_errs": 1,
        "after_dies": 1,
    }


TEST_RAY = """
import json
import ray
from agentlab.experiments.exp_utils import MockedExpArgs
from experiments import Exp
from governor.tasks.agentlab import use

use()
from agentlab.experiments.graph_execution_ray import execute_task_graph

needs = {"task1": [], "task2": ["task1"], "task3": ["task1"], "task4": ["task2", "task3"]}
ray.init(num_cpus=4)
execute_task_graph([Exp(name, "call", "my_project:meet") for name in "abcd"])  # all runners have imported AgentLab
results = execute_task_graph([MockedExpArgs(exp_id=name, depends_on=needs[name]) for name in needs])
ray.shutdown()
print(json.dumps([[results[name].start_time, results[name].end_time] for name in needs]))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_execute_task_graph(play):
    one, two, three, four = play(TEST_RAY)
    assert one[1] <= min(two[0], three[0])
    assert max(two[1], three[1]) <= four[0]
    assert max(two[0], three[0]) < min(two[1], three[1]), "one after the other"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_example_of_the_page_on_migrating(play, tmp_path):
    program = (ROOT / "docs/migrating.md").read_text().split('```text title="main.py"\n')[1].split("```")[0]
    assert "use()" in program
    play(program)
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("one", "two")] == [1, 1]

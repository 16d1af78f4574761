"""The task graph of AgentLab: `execute_task_graph`, against real Ray."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from governor.tasks import SchedulerConfig, TaskFailed, execute_task_graph
from governor.tasks.agentlab.ray_tasks import _episode_timeout, parse_and_truncate_error, run_exp
from governor.tasks.errors import GraphError
from tests.support.living import lives
from tests.support.user_code.experiments import Bare, EnvArgs, Exp, Later, Unsendable, Where, story_of

pytestmark = pytest.mark.usefixtures("harness")

QUICK = SchedulerConfig(grace=0.2)


def run(*exps, **more):
    return execute_task_graph(list(exps), config=QUICK, **more)


def of(story, name):
    return [line for line in story if line["exp"] == name]


# -- the two functions without Ray --------------------------------------------------------------------------


def test_the_limit_of_an_episode_is_steps_times_seconds():
    exp = SimpleNamespace(env_args=SimpleNamespace(max_steps=30))
    assert _episode_timeout(exp) == 1800
    assert _episode_timeout(exp, avg_step_timeout=0.5) == 15
    exp.episode_timeout = 7
    assert _episode_timeout(exp) == 7
    exp.episode_timeout = 10_000
    assert _episode_timeout(exp) == 1800
    exp.episode_timeout = None
    assert _episode_timeout(exp) == 1800
    exp.episode_timeout = "300"
    assert _episode_timeout(exp) == 300
    exp.exp_id, exp.episode_timeout = "e", math.nan
    with pytest.raises(
        ValueError, match="experiment 'e': episode_timeout must be a number of seconds, not nan"
    ):
        _episode_timeout(exp)


@pytest.mark.parametrize(
    "option",
    [
        {"num_cpus": -1},
        {"memory": -5},
        {"num_gpus": math.nan},
        {"num_cpus": "2"},
        {"max_retries": -2},
        {"max_retries": 1.5},
        {"num_gpus": math.inf},
        {"resources": {"tpu": -1}},
        {"resources": 3},
    ],
)
def test_an_option_that_is_no_amount_is_refused(option):
    with pytest.raises(ValueError, match=r"run_exp\.options: .*(is no amount|a dict of amounts)"):
        run_exp.options(**option)


def test_options_that_are_amounts():
    run_exp.options(
        num_cpus=np.int64(2), num_gpus=0.5, memory=None, max_retries=10**400, resources={"tpu": 1}
    )


@pytest.mark.parametrize(
    "env_args", [None, SimpleNamespace(), SimpleNamespace(max_steps=None)], ids=["none", "bare", "steps none"]
)
def test_without_steps_an_episode_has_ten_hours(env_args):
    assert _episode_timeout(SimpleNamespace(env_args=env_args)) == 36_000
    assert _episode_timeout(SimpleNamespace(env_args=env_args, episode_timeout=5)) == 5


def test_an_error_keeps_its_head_and_its_tail():
    assert parse_and_truncate_error("\x1b[31mbad\x1b[0m luck\n") == "bad luck"
    exact = "x" * 2000
    assert parse_and_truncate_error(exact) == exact
    text = "HEAD" + "x" * 50_000 + "TAIL"
    cut = parse_and_truncate_error(error_msg=text)
    assert len(cut) <= 2000
    assert cut.startswith("HEAD")
    assert cut.endswith("TAIL")
    assert "left out" in cut


def test_called_it_runs_here():
    assert run_exp(Exp("a", "give", 3), "a result", avg_step_timeout=1) == 3
    assert run_exp(Later("b")) == "later"
    with pytest.raises(ValueError, match="bad luck"):
        run_exp(Exp("a", "fail"))


# -- graphs that are refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (
            [("a", ["c"]), ("b", ["a"]), ("c", ["b"])],
            "the experiments depend on each other in a cycle: a -> c -> b -> a",
        ),
        ([("a", ["a"])], 'experiment "a" depends on itself'),
        (
            [("a", []), ("b", ["ghost"])],
            'experiment "b" depends on "ghost", which is none of the experiments',
        ),
        ([("a", []), ("b", []), ("a", [])], 'experiment id "a" is already used by experiments[0]'),
        ([("a", []), (None, [])], "experiments[1] has no exp_id"),
        ([("ab", "cd")], "experiment \"ab\" has depends_on='cd', which is a text and not a list of ids"),
    ],
    ids=["cycle", "itself", "unknown", "duplicate", "no id", "text"],
)
def test_a_graph_with_a_fault_runs_nothing(graph, said, tmp_path):
    story = tmp_path / "story"
    exps = [Exp("first", story=story)] + [Exp(name, depends_on=needs, story=story) for name, needs in graph]
    exps = [*exps[1:], exps[0]]
    with pytest.raises(GraphError) as caught:
        run(*exps)
    assert str(caught.value) == said
    assert story_of(story) == []


def test_all_faults_are_told_at_once():
    with pytest.raises(ValueError, match="itself") as caught:
        run(Exp("a", depends_on=["a"]), Exp("b", depends_on=["x", "y"]))
    assert all(name in str(caught.value) for name in ('"a"', '"x"', '"y"'))


def test_what_cannot_be_sent_is_named_and_nothing_runs(tmp_path):
    story = tmp_path / "story"
    with pytest.raises(
        TypeError, match=r'experiment "7" cannot be sent to a runner: RuntimeError: no pickle'
    ):
        run(Exp("a", story=story), Unsendable(7))
    with pytest.raises(TypeError, match=r'experiment "idle" is a SimpleNamespace, which .* no run\(\)'):
        run(Exp("a", story=story), SimpleNamespace(exp_id="idle"))
    assert story_of(story) == []


def test_nothing_gives_nothing():
    assert execute_task_graph([]) == {}


# -- results ------------------------------------------------------------------------------------------------


def test_results_come_under_the_callers_own_ids_in_order():
    exps = [
        Bare(2),
        Bare("b"),
        Later((1, "x")),
        Exp("n", "give", None, depends_on=None),
        Exp(1, depends_on=[2]),
    ]
    results = run(*exps)
    assert list(results.items()) == [(2, 2), ("b", "b"), ((1, "x"), "later"), ("n", None), (1, None)]


def test_results_of_any_kind_come_back():
    array = np.arange(5.0)
    large = {"rows": list(range(100_000)), "nan": math.nan}
    results = run(
        Exp("self", "itself", 5),
        Exp("array", "give", array),
        Exp("large", "give", large),
        Exp("set", "give", {1, (2, 3)}),
        Exp("tuple", "give", ({"shape": (2, 3)}, [1])),
    )
    assert results["self"] == Exp("self", "itself", 5)
    assert np.array_equal(results["array"], array)
    assert results["large"]["rows"] == large["rows"]
    assert math.isnan(results["large"]["nan"])
    assert results["set"] == {1, (2, 3)}
    assert results["tuple"] == ({"shape": (2, 3)}, [1])


def test_a_result_that_cannot_be_read_or_kept_fails_alone():
    results = run(Exp("bad", "make", "unreadable"), Exp("kept", "make", "generator"), Exp("good", "give", 1))
    assert results["good"] == 1
    assert isinstance(results["bad"], TaskFailed)
    assert "cannot be read here: OSError: another machine's result" in str(results["bad"])
    assert results["kept"].outcome == "failed"
    assert "cannot be serialised" in str(results["kept"])


def test_an_experiment_has_the_main_thread_and_no_event_loop():
    """As Playwright's synchronous interface and ``signal.alarm`` need it."""
    assert run(Where("a")) == {"a": (True, True)}


def test_dependants_run_after_and_may_take_the_results(tmp_path):
    story = tmp_path / "story"
    exps = [
        Exp("last", depends_on=["left", "right"], story=story),
        Exp("left", depends_on=("first",), story=story),
        Exp("right", depends_on=("first",), story=story),
        Exp("first", story=story),
    ]
    run(*exps)
    when = {(line["exp"], line["what"]): line["at"] for line in story_of(story)}
    assert when["first", "ended"] <= min(when["left", "begun"], when["right", "begun"])
    assert max(when["left", "ended"], when["right", "ended"]) <= when["last", "begun"]


# -- failures -----------------------------------------------------------------------------------------------


def test_what_failed_is_an_exception_that_names_the_root():
    results = run(
        Exp("root", "fail", "broken"),
        Exp("near", depends_on=["root"]),
        Exp("far", depends_on=["near", "other"]),
        Exp("other", "give", 4),
    )
    assert results["other"] == 4
    root, near, far = results["root"], results["near"], results["far"]
    assert isinstance(root, Exception)
    assert (root.outcome, root.cause) == ("failed", None)
    assert "ValueError: broken" in str(root)
    assert [(each.outcome, each.cause) for each in (near, far)] == [("upstream_failed", "root")] * 2
    assert str(far) == 'task "far" upstream_failed: task "root" did not succeed'


def test_a_dead_or_leaving_worker_is_one_execution(tmp_path):
    story = tmp_path / "story"
    exps = [
        Exp("killed", "killed", story=story),
        Exp("leaves", "leave", story=story),
        *(Exp(f"other {n}", "give", n, story=story) for n in range(20)),
    ]
    results = run(*exps)
    said = story_of(story)
    assert {
        each.exp_id: len([x for x in of(said, each.exp_id) if x["what"] == "begun"]) for each in exps
    } == {each.exp_id: 1 for each in exps}
    assert results["killed"].outcome == "crashed"
    assert "killed by a signal" in str(results["killed"])
    assert results["leaves"].outcome == "failed"
    assert "sys.exit(3)" in str(results["leaves"])
    assert [results[f"other {n}"] for n in range(20)] == list(range(20))


def test_each_has_its_own_limit_also_beside_longer_ones(tmp_path):
    story = tmp_path / "story"
    began = time.monotonic()
    results = run(
        Exp("sleep", "sleep", 60, episode_timeout=0.5, story=story),
        Exp("gil", "hold_gil", episode_timeout=0.5, story=story),
        Exp("sibling", "give", 1, env_args=EnvArgs(3000), story=story),
    )
    assert time.monotonic() - began < 55, "the longest limit held for all"
    assert results["sibling"] == 1
    for name in ("sleep", "gil"):
        assert results[name].outcome == "timed_out"
        assert 0.5 <= results[name].record.seconds < 55
        (begun,) = of(story_of(story), name)
        assert not lives(begun["pid"]), "it lives on"


def test_a_slow_import_is_no_running_time(tmp_path):
    """The module of the experiment takes longer to import than the experiment may take."""
    (tmp_path / "slow_exp.py").write_text(
        "import os, time\n"
        "if os.environ.get('SLOW_EXP') is None: time.sleep(1.5)\n"
        "class SlowExp:\n"
        "    episode_timeout = 0.5\n"
        "    exp_id = 'slow'\n"
        "    def run(self): return 'in time'\n"
    )
    program = (
        "import os, sys\n"
        "os.environ['SLOW_EXP'] = '1'\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import slow_exp\n"
        "del os.environ['SLOW_EXP']\n"
        "from governor.tasks import SchedulerConfig, execute_task_graph\n"
        "config = SchedulerConfig(address=os.environ['RAY'])\n"
        "print(execute_task_graph([slow_exp.SlowExp()], config=config))\n"
    )
    assert "{'slow': 'in time'}" in run_program(program)


def run_program(program):
    import ray

    address = ray.get_runtime_context().gcs_address
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAY": address, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout

"""Sessions end: at the interpreter's exit, at Ctrl-C, when Ray is shut down below them; and `run_exp.remote`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from governor.tasks import SchedulerConfig, TaskFailed, poll_for_timeout, run_exp
from governor.tasks.agentlab.session import GraphSession
from tests.support.living import lives
from tests.support.user_code.experiments import Exp, LaterSums, Sums, story_of


@pytest.fixture(scope="module", autouse=True)
def _shared(harness):
    yield
    if GraphSession._shared is not None:
        GraphSession._shared.close()


def program(text, *arguments, **more):
    import ray

    environment = {
        **os.environ,
        "RAY": ray.get_runtime_context().gcs_address,
        "PYTHONPATH": str(Path.cwd()),
        **more,
    }
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


def pids(path):
    return [line["pid"] for line in story_of(path) if line["what"] == "begun"]


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- run_exp.remote -----------------------------------------------------------------------------------------


def test_dependants_wait_and_fail_with_their_root(tmp_path):
    import ray

    story = tmp_path / "story"
    first = run_exp.remote(Exp("first", "sleep", 0.2, story=story))
    value = ray.put(1)
    second = run_exp.options(name="a name").remote(Exp("second", story=story), first, value, "a value")
    bad = run_exp.remote(Exp("bad", "fail"), second)
    worse = [bad]
    for number in range(300):
        worse.append(run_exp.remote(Exp(number), worse[-1], first))
    assert worse[-1].outcome().cause == "bad"
    assert worse[-1].outcome().outcome == "upstream_failed"
    assert second.outcome() is None
    assert repr(second) == "<TaskRef a name succeeded>"
    assert [(line["exp"], line["what"]) for line in story_of(story)] == [
        (name, what) for name in ("first", "second") for what in ("begun", "ended")
    ]


def test_an_experiment_is_sent_as_it_is_now(tmp_path):
    exp = Exp("changes", "count", 1)
    found = [run_exp.remote(exp).outcome()]
    exp.arg = 10
    found.append(run_exp.remote(exp).outcome())
    assert found == [2, 11]


def test_a_retry_gets_it_anew(tmp_path):
    story, there = tmp_path / "story", tmp_path / "there"
    exp = Exp("dies", "killed", story=story)
    assert run_exp.options(max_retries=2).remote(exp).outcome().record.attempts == 3
    assert len(pids(story)) == 3
    story.unlink()
    assert run_exp.remote(exp).outcome().outcome == "crashed"
    assert len(pids(story)) == 1
    assert not there.exists()


def test_options_are_heard_or_refused():
    with pytest.raises(ValueError, match="run_exp has no option runtime_env"):
        run_exp.options(runtime_env={})
    never = run_exp.options(resources={"unheard": 1}).remote(Exp("a")).outcome()
    assert "unheard" in str(never)
    assert run_exp.options(num_cpus=1).remote(Exp("a", "give", 1)).outcome() == 1


def test_what_it_stored_is_released(tmp_path):
    results = [run_exp.remote(Exp(number, "give", number)) for number in range(50)]
    assert [each.outcome() for each in results] == list(range(50))
    bad = run_exp.remote(Exp("bad", "fail"))
    assert run_exp.remote(Exp("never"), bad).outcome().cause == "bad"
    users = GraphSession.shared()._driver.pickle_store._references
    until(lambda: not users)


def test_a_reference_stays_in_its_process():
    import pickle

    with pytest.raises(TypeError, match="stays in the process"):
        pickle.dumps(run_exp.remote(Exp("a")))


@pytest.mark.parametrize("kind", [Sums, LaterSums])
@pytest.mark.parametrize("how", [run_exp, run_exp.remote], ids=["here", "remote"])
def test_the_results_of_what_was_sent_before_are_its_inputs(kind, how):
    import ray

    rows = list(range(100_000))
    needs = [
        run_exp.remote(Exp(1, "give", 20)),
        run_exp.options(name="any").remote(Exp("rows", "give", rows)),
    ]
    bare = ray.put(1)
    given = how(kind("sum"), *needs, bare, 7, needs[0])
    given = given if how is run_exp else given.outcome()
    assert given == {"inputs": {"1": 20, "rows": rows}, "task": "sum"}


def test_one_may_come_after_others_of_its_own_id():
    first = run_exp.remote(Exp("same", "give", 1))
    assert run_exp.remote(Sums("same"), first).outcome() == {"inputs": {}, "task": "same"}


def test_called_here_it_raises_what_it_depends_on():
    with pytest.raises(TaskFailed, match="bad luck"):
        run_exp(Sums("sum"), run_exp.remote(Exp("bad", "fail")))


def test_a_failure_is_heard_while_others_before_it_still_run(tmp_path):
    endless = run_exp.remote(Exp("endless", "hold_gil"))
    never = run_exp.remote(Exp("never"), endless, run_exp.remote(Exp("bad", "fail")))
    assert never.future.result(30).cause == "bad"
    assert not endless.future.done()
    assert poll_for_timeout({"endless": endless}, 0)["endless"].outcome == "timed_out"


def test_a_future_that_somebody_wants_to_cancel_ends_as_its_task_does():
    first = run_exp.remote(Exp("first", "give", 1))
    assert not first.future.cancel()
    assert run_exp.remote(Sums("second"), first).outcome()["inputs"] == {"first": 1}


def test_what_the_engine_refuses_ends_with_the_reason():
    session = GraphSession(SchedulerConfig(grace=0.2, max_pending=2))
    session.open()
    try:
        more = {"timeout": 60, "retries": 0, "resources": {}}
        first = session.submit_one(Exp("a", "give", 1), name="a", after=(), **more)
        first.future.result(30)
        busy = [
            session.submit_one(Exp(n, "sleep", 60), name=str(n), after=(), **more).future for n in range(2)
        ]
        late = session.submit_one(Exp("b"), name="b", after=(first,), **more)
        assert late.future.result(30).outcome == "failed"
        assert late.future.result().error.startswith("QueueFull: ")
        assert not any(future.done() for future in busy)
    finally:
        session.close()


# -- ends ---------------------------------------------------------------------------------------------------

LEAVES = """
import os, sys, psutil
from governor.tasks import run_exp
class Exp:
    exp_id = "a"
    def __init__(self, tag): self.tag = tag
    def run(self): return self
found = run_exp.remote(Exp("mine")).outcome()
assert isinstance(found, Exp) and found.tag == "mine", found
print("pids", *(child.pid for child in psutil.Process().children(recursive=True)))
"""


@pytest.mark.long
def test_at_exit_nothing_is_left():
    """With a head of its own; its class is the script's."""
    import ray

    caller = program(LEAVES)
    out, err = caller.communicate(timeout=60)
    assert caller.returncode == 0
    assert not [line for line in err.splitlines() if "[info" not in line]
    (line,) = [line for line in out.splitlines() if line.startswith("pids ")]
    left = [int(pid) for pid in line.split()[1:]]
    assert len(left) > 3
    assert not [pid for pid in left if lives(pid)]
    assert ray.is_initialized()


INTERRUPTED = """
import os, sys
from pathlib import Path
from tests.support.living import lives
from tests.support.user_code.experiments import Exp
from governor.tasks import SchedulerConfig, execute_task_graph
exps = [Exp(n, "hold_gil", story=Path(sys.argv[1])) for n in range(3)]
try:
    execute_task_graph(exps, config=SchedulerConfig(address=os.environ["RAY"]))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path):
    caller = program(INTERRUPTED, tmp_path / "story")
    until(lambda: len(pids(tmp_path / "story")) == 2)
    caller.send_signal(signal.SIGINT)
    out, err = caller.communicate(timeout=20)
    assert caller.returncode == 0, err
    assert "interrupted" in out.splitlines()
    assert len(pids(tmp_path / "story")) == 2, "what waited has begun"
    assert not [pid for pid in pids(tmp_path / "story") if lives(pid)]


OPENING = """
from governor.tasks import execute_task_graph
from tests.support.living import lives
from tests.support.user_code.experiments import Exp
execute_task_graph([Exp("a", "sleep", 600)])
"""


def test_ctrl_c_while_it_opens_leaves_nothing():
    caller = program(OPENING)
    until(lambda: descendants(caller.pid))
    children = descendants(caller.pid)
    caller.send_signal(signal.SIGINT)
    _, err = caller.communicate(timeout=30)
    assert caller.returncode != 0
    assert "KeyboardInterrupt" in err
    until(lambda: not [child for child in children if lives(child.pid)], 5)


SHUT_DOWN = """
import os, ray, ray._private.services, time
from governor.tasks import execute_task_graph, run_exp
from governor.tasks.agentlab.session import GraphSession
from tests.support.living import lives
from tests.support.user_code.experiments import Exp
ray._private.services.resolve_ip_for_localhost = lambda host: host
ray.init(os.environ["RAY"], log_to_driver=False)
began = time.monotonic()
print(execute_task_graph([Exp(1, "give", 1)]), run_exp.remote(Exp(2, "give", 2)).outcome())
first = time.monotonic() - began
ray.shutdown()
ray.init(os.environ["RAY"], log_to_driver=False)
old = GraphSession._shared
began = time.monotonic()
print(run_exp.remote(Exp(3, "give", 3)).outcome())
print("longer than the first session, by", time.monotonic() - began - first)
print("a new session", GraphSession._shared is not old)
ray.shutdown()
"""


@pytest.mark.long
def test_rays_end_below_a_session_is_no_trouble():
    """As AgentLab does around each study."""
    caller = program(SHUT_DOWN)
    out, err = caller.communicate(timeout=90)
    assert caller.returncode == 0, err
    assert "{1: 1} 2" in out.splitlines()
    assert {"3", "a new session True"} <= set(out.splitlines())
    [longer] = [line.rpartition(" ")[2] for line in out.splitlines() if line.startswith("longer ")]
    assert float(longer) < 8, "it waits for a Ray that has gone, or starts another"
    assert "driver.close_timeout" not in out + err


ANOTHER_CLUSTER = """
import ray
from governor.tasks import run_exp
from governor.tasks.cluster.joining import worker_id
class Exp:
    def __init__(self, number): self.exp_id = number
    def run(self): return self.exp_id
ids = set()
for number in range(2):
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    ids.add(worker_id())
    print("found", run_exp.remote(Exp(number)).outcome())
    ray.shutdown()
assert len(ids) == 2, ids
"""


@pytest.mark.long
def test_a_second_cluster_of_the_process_is_another_one():
    """Ray numbers its drivers anew in each; the class of the script is stored in the first one alone."""
    caller = program(ANOTHER_CLUSTER)
    out, err = caller.communicate(timeout=110)
    assert caller.returncode == 0, err
    assert {"found 0", "found 1"} <= set(out.splitlines()), out + err


TOO_SLOW = """
import os, time
from tests.support.living import lives
from tests.support.user_code.experiments import Exp
from governor.tasks import SchedulerConfig
from governor.tasks.agentlab.session import GraphSession
session = GraphSession(SchedulerConfig(address=os.environ["RAY"], stop_timeout=0.0))
session.open()
more = {"timeout": 60, "retries": 0, "resources": {}}
running = session.submit_one(Exp("a", "sleep", 60), name="a", after=(), **more)
waiting = session.submit_one(Exp("b"), name="b", after=[running], **more)
while running.elapsed() is None:
    time.sleep(0.01)
session.close()
print("ended", running.future.result(5).outcome, waiting.future.result(5).outcome)
os._exit(0)
"""


def test_a_close_that_takes_too_long_ends_all_references():
    caller = program(TOO_SLOW)
    out, err = caller.communicate(timeout=60)
    assert caller.returncode == 0, err
    assert [line for line in out.splitlines() if line.startswith("ended cancelled ")]


def test_whoever_calls_while_it_ends_hears_of_it():
    session = GraphSession(SchedulerConfig())
    session._thread.start()
    hold, heard = threading.Event(), []
    session._loop.call_soon_threadsafe(hold.wait)
    session._loop.call_soon_threadsafe(session._loop.stop)

    def call():
        with pytest.raises(RuntimeError, match="the session is closed"):
            session.call(lambda: None)
        heard.append(True)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    until(lambda: session._awaited)
    hold.set()
    session._end_thread()
    caller.join(10)
    assert heard


def test_a_closed_session_says_so():
    session = GraphSession(SchedulerConfig(grace=0.2))
    session.open()
    reference = session.submit_one(
        Exp("a", "sleep", 60), name="a", timeout=60, retries=0, resources={}, after=()
    )
    never = session.submit_one(Exp("b"), name="b", timeout=60, retries=0, resources={}, after=[reference])
    session.close()
    session.close()
    assert reference.outcome().outcome == "cancelled"
    assert never.outcome().outcome in ("cancelled", "upstream_failed")
    with pytest.raises(RuntimeError, match="the session is closed"):
        session.submit_one(Exp("c"), name="c", timeout=1, retries=0, resources={}, after=())
    assert reference.elapsed() is not None or reference.outcome().record.attempts == 0

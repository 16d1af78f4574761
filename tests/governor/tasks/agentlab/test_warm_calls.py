"""Runners stay warm from one call to the next, and give way to whatever the user does in between."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from governor.tasks import Scheduler, SchedulerConfig, execute_task_graph, release_runners
from governor.tasks.agentlab.session import GraphSession
from governor.tasks.cluster import warm_runners
from governor.tasks.cluster.warm_runners import WARM
from governor.tasks.runners import handle
from tests.support.living import lives
from tests.support.user_code.experiments import Exp, Leaving

pytestmark = pytest.mark.usefixtures("harness")


@pytest.fixture(autouse=True)
def _none_before_and_after():
    release_all()
    yield
    release_all()


def release_all():
    """Also those that the last call has started and not waited for."""
    session = GraphSession._shared
    if session is not None and session._is_connected():
        session.wait(session._driver.engine.settle())
        session.call(session._rest)
    release_runners()


def pids_of(*exps, **config):
    """The pids of the runners that have executed these."""
    results = execute_task_graph(list(exps), config=SchedulerConfig(grace=0.2, **config))
    assert all(isinstance(each, int) for each in results.values()), results
    for exp in exps:
        if exp.deed == "meet":
            shutil.rmtree(exp.arg[0], ignore_errors=True)
    return set(results.values())


def both():
    """Each on a runner of its own."""
    folder = Path(tempfile.mkdtemp(prefix="governor-test-"))
    return [Exp(number, "meet", (folder, 2)) for number in range(2)]


def kept():
    return {runner.pid for runner in WARM._until}


def test_the_next_call_has_the_same_runners_and_so_has_a_scheduler():
    first = pids_of(*both())
    assert len(first) == 2
    assert kept() == first
    assert pids_of(*both()) == first

    async def scheduled():
        async with Scheduler(SchedulerConfig(runner_per_model=1)):
            return kept()

    assert len(asyncio.run(scheduled())) == 1
    assert kept() == first


def test_a_runner_that_is_used_before_rays_thread_goes_on_is_kept(monkeypatch):
    """It connects as soon as it is told: a short call is over before the thread that told it has the processor again."""
    first = pids_of(*both())
    serve, keep = warm_runners.IdleRunner.serve, handle.RunnerHandle.keep
    asked = threading.Event()

    def serve_slowly(runner, driver):
        told = serve(runner, driver)
        assert asked.wait(20)
        return told

    def note(self, path):
        asked.set()
        return keep(self, path)

    monkeypatch.setattr(warm_runners.IdleRunner, "serve", serve_slowly)
    monkeypatch.setattr(handle.RunnerHandle, "keep", note)
    used = pids_of(Exp("a", "pid"))
    assert used <= kept() & first


def test_graphs_at_once_with_the_same_ids_have_their_own_results_and_leave_no_files():
    found = {}

    def call(letter):
        given = [Exp(n, "give", letter * 100_000) for n in range(3)]
        found[letter] = execute_task_graph(given)

    callers = [threading.Thread(target=call, args=(letter,)) for letter in "ab"]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert found == {letter: dict.fromkeys(range(3), letter * 100_000) for letter in "ab"}
    folder = GraphSession._shared._driver.folder
    assert not list((folder / "results").glob("*"))


def test_a_module_whose_folder_came_to_the_path_after_the_first_call_is_found(tmp_path, monkeypatch):
    execute_task_graph([Exp("a")])
    (tmp_path / "come_later.py").write_text(
        "class Late:\n    exp_id = 1\n    def run(self):\n        return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("come_later").Late()
    assert execute_task_graph([late]) == {1: 7}


def test_a_call_that_cannot_be_sent_gives_its_runners_back():
    first = pids_of(*both())
    execute_task_graph([Exp("a")])
    with pytest.raises(TypeError, match="cannot be sent"):
        execute_task_graph([Exp("a", "give", threading.Lock())])
    session = GraphSession._shared
    session.wait(session._driver.cluster.call(lambda: None))  # what began to connect them is over
    end = time.monotonic() + 20
    while kept() != first:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_calls_leave_nothing_behind_in_the_memory_of_their_process():
    def objects_after(calls):
        for _ in range(calls):
            execute_task_graph([Exp("a")])
        gc.collect()
        return len(gc.get_objects())

    assert objects_after(3) + 10 * 20 > objects_after(10)


def test_results_of_the_call_before_stay_apart(tmp_path):
    rows = list(range(100_000))
    for folder in (tmp_path / "a", tmp_path / "b"):
        found = execute_task_graph([Exp("rows", "give", rows), Exp("here", "pid")], folder=folder)
        assert found["rows"] == rows
        assert list(folder.glob("results/**/rows-0.json"))
        assert not list(folder.glob(".governor-*"))


def test_what_a_task_leaves_behind_is_dead_when_the_call_returns():
    first = pids_of(*both())
    (child,) = pids_of(Exp("a", "leave_child"))
    assert not lives(child)
    end = time.monotonic() + 20
    while (
        len(kept()) != 1
    ):  # the runner that had a child is not used again; the other one may have been connecting
        assert time.monotonic() < end
        time.sleep(0.02)
    assert kept() < first


@pytest.mark.parametrize("is_late", [False, True])
def test_nor_does_a_process_live_on_whose_task_has_left_a_thread_that_reports_or_starts_it(is_late, tmp_path):
    path = tmp_path / "pid" if is_late else None
    pids_of(*both())  # each of the next two has a runner of its own
    found = execute_task_graph([Leaving("a", path), Exp("b", "sleep", 0.6)])
    runner, child = found["a"]
    assert runner not in kept()
    child = int(path.read_text()) if path else child
    end = time.monotonic() + 20
    while lives(child):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_code_that_was_changed_in_between_is_imported_anew(tmp_path, monkeypatch):
    module = tmp_path / "changing.py"
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number in (1, 2):
        module.write_text(f"def number():\n    import os\n    return {number}, os.getpid()\n")
        os.utime(module, (time.time() + 10 * number,) * 2)
        sys.modules.pop("changing", None)
        found.append(execute_task_graph([Exp("a", "call", "changing:number")])["a"])
    (one, old), (two, new) = found
    assert (one, two) == (1, 2)
    assert old != new
    assert not lives(old)


@pytest.mark.parametrize("seconds", [0, 0.2])
def test_they_end_after_their_idle_time(seconds):
    pids = pids_of(*both(), idle_timeout=seconds)
    end = time.monotonic() + 20
    while seconds and any(map(lives, pids)):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not any(map(lives, pids))
    assert not kept()
    assert not [each for each in threading.enumerate() if each.name == "tasks.warm" and not seconds]


def test_they_end_at_once_when_they_are_released():
    pids = pids_of(*both())
    release_runners()
    assert not any(map(lives, pids))
    assert pids_of(*both()).isdisjoint(pids)


def test_one_that_was_killed_meanwhile_is_replaced():
    old = pids_of(*both())
    victim = max(old)
    os.kill(victim, signal.SIGKILL)
    new = pids_of(*both())
    assert victim not in new
    assert len(new) == 2


def test_one_that_hangs_is_replaced(monkeypatch):
    monkeypatch.setattr(handle, "BACK_SECONDS", 0.3)
    victim = max(pids_of(*both()))
    os.kill(victim, signal.SIGSTOP)
    new = pids_of(*both())
    assert victim not in new
    assert not lives(victim)


def test_threads_that_call_at_once_have_runners_of_their_own():
    found, threads = {}, []
    for number in range(3):
        threads.append(
            threading.Thread(target=lambda number=number: found.update({number: pids_of(*both())}))
        )
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    assert len(set.union(*found.values())) == sum(map(len, found.values()))
    assert kept() == set.union(*found.values())


def test_a_fork_has_none_of_them():
    pids = pids_of(*both())
    read, write = os.pipe()
    child = os.fork()
    if not child:
        told = f"{len(kept())}"
        os.write(write, told.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"0"
    os.close(read)
    os.close(write)
    assert kept() == pids
    assert pids_of(*both()) == pids


def test_none_is_let_go_of_once_the_interpreter_ends(monkeypatch):
    """To end it then would hold up the driver's loop: those that are not kept are ended together."""
    monkeypatch.setattr(WARM, "_is_registered", True)
    monkeypatch.setattr(WARM, "_is_closed", True)
    let_go = []
    monkeypatch.setattr(handle.RunnerHandle, "keep", lambda *given: let_go.append(given))
    pids = pids_of(*both())
    assert not let_go
    assert not any(map(lives, pids))


# -- a program of a user ------------------------------------------------------------------------------------

USERS_OWN = """
import os, sys, tempfile, time
from pathlib import Path
import ray
from governor.tasks import execute_task_graph, run_exp
from tests.support.living import lives
from tests.support.user_code.experiments import Exp

def call():
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    return set(execute_task_graph([Exp(n, "meet", (folder, 2)) for n in range(2)]).values())

def free():
    end = time.monotonic() + 20
    while ray.available_resources().get("CPU") != 2.0 and time.monotonic() < end:
        time.sleep(0.05)
    return ray.available_resources().get("CPU")

ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1])
first = call()
assert all(map(lives, first))
assert free() == 2.0, ray.available_resources()
assert ray.get(ray.remote(num_cpus=2)(lambda: 7).remote(), timeout=30) == 7
assert call() == first
holds = run_exp.options(num_cpus=2).remote(Exp("all", "pid")).outcome()
assert free() == 2.0, ray.available_resources()
end = time.monotonic() + 20
while lives(holds):
    assert time.monotonic() < end
ray.shutdown()
ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[1], namespace="another")
second = call()
assert first.isdisjoint(second)
assert not any(map(lives, first))
print("pids", *second, flush=True)
{end}
"""


def program(end, folder):
    text = USERS_OWN.replace("{end}", end)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", text, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "end",
    ["time.sleep(2)", "time.sleep(2); ray.shutdown(); time.sleep(1)", "os.kill(os.getpid(), 9)"],
    ids=["exit", "shutdown", "kill -9"],
)
def test_ray_tells_of_no_death_and_nothing_is_left(end):
    folder = tempfile.mkdtemp(prefix="gt-")
    try:
        caller = program(end, folder)
        told, _ = caller.communicate(timeout=110)
        assert caller.returncode == (-9 if "kill" in end else 0), told
        (line,) = re.findall(r"^pids (.*)$", told, re.MULTILINE)
        until = time.monotonic() + 20
        while any(lives(int(pid)) for pid in line.split()):
            assert time.monotonic() < until, "a runner is left"
            time.sleep(0.05)
        assert "died" not in told, told
        assert "killed" not in told, told
        assert "Traceback" not in told, told
    finally:
        for each in psutil.process_iter(["cmdline"]):
            if any(folder in part for part in each.info["cmdline"] or ()):
                each.kill()  # Ray's servers, after kill -9
        shutil.rmtree(folder, ignore_errors=True)

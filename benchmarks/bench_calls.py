"""Calls of `execute_task_graph` and `run_exp` as users make them, beside plain Ray in the same process. `python benchmarks/bench_calls.py`
takes about two minutes.

Each process initializes Ray as users do (`ray.init`), with 2 CPUs. Both sides take turns; a ratio is that of the medians of the
turns. The first call of a process is measured in processes that do nothing else, and so is the first call of a plain actor.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from support.rows import Row, p50, spread, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CPUS = 2
FIRST_TURNS = 3
TURNS = 9
LARGE_TURNS = 3
CHAIN = 200
IDLE_SECONDS = 1.0
DEATH = "A worker died or was killed"
MISSED = "each experiment is pickled, unpickled and reported, and Ray runs its workers at nice 15: other work goes first"
WORKERS_STARTED = 3.0
"""Ray starts its workers in the background after `ray.init`; a user's program has done something else meanwhile."""


class Experiment:
    def __init__(self, exp_id: str, depends_on: tuple[str, ...] = ()) -> None:
        self.exp_id = exp_id
        self.depends_on = depends_on

    def run(self) -> None:
        return None


class Where:
    """Tells the pid of its runner."""

    def __init__(self, exp_id: int) -> None:
        self.exp_id = exp_id

    def run(self) -> int:
        time.sleep(0.1)
        return os.getpid()


def experiments(number: int) -> list[Experiment]:
    return [Experiment(f"t{n}") for n in range(number)]


def chain(length: int) -> list[Experiment]:
    return [Experiment(f"t{n}", (f"t{n - 1}",) if n else ()) for n in range(length)]


# -- in a process of its own --------------------------------------------------------------------------------


def init_ray(folder: str) -> Any:
    import ray

    ray.init(num_cpus=CPUS, include_dashboard=False, _temp_dir=folder)
    time.sleep(WORKERS_STARTED)
    return ray


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def call(given: list[Experiment]) -> None:
    from governor.tasks import execute_task_graph

    found = execute_task_graph(given)
    if len(found) != len(given) or any(value is not None for value in found.values()):
        raise RuntimeError("not all experiments have succeeded")


def each_alone(given: list[Experiment]) -> None:
    from governor.tasks import run_exp

    for reference in [run_exp.remote(each) for each in given]:
        if reference.outcome() is not None:
            raise RuntimeError("an experiment has failed")


def each_after_the_other(given: list[Experiment]) -> None:
    from governor.tasks import run_exp

    reference = run_exp.remote(given[0])
    for each in given[1:]:
        reference = run_exp.remote(each, reference)
    if reference.outcome() is not None:
        raise RuntimeError("an experiment has failed")


def first_call(folder: str) -> dict[str, list[float]]:
    init_ray(folder)
    from governor.tasks import execute_task_graph  # noqa: F401  # as a user's program imports it

    return {"first": [seconds_of(lambda: call(experiments(CPUS)))]}


def first_actor(folder: str) -> dict[str, list[float]]:
    ray = init_ray(folder)

    class Actor:
        def nothing(self) -> None:
            return None

    def work() -> None:
        actors = [ray.remote(Actor).options(num_cpus=0).remote() for _ in range(CPUS)]
        ray.get([actor.nothing.remote() for actor in actors])

    return {"first": [seconds_of(work)]}


def later_calls(folder: str) -> dict[str, list[float]]:
    from bench_tasks import Plain  # not above: what it imports would be missing from the time of a first call

    plain = Plain(init_ray(folder))
    call(experiments(CPUS))
    each_alone(experiments(CPUS))
    call(experiments(CPUS))  # those of `run_exp` are in its own hands
    plain.many(CHAIN)
    found: dict[str, list[float]] = {}
    sizes = [(1_000, TURNS), (10_000, LARGE_TURNS)]
    for number, turns in sizes:
        for _ in range(turns):
            given = experiments(number)
            found.setdefault(f"plain {number}", []).append(seconds_of(lambda n=number: plain.many(n)))
            found.setdefault(f"call {number}", []).append(seconds_of(lambda g=given: call(g)))
            found.setdefault(f"run_exp {number}", []).append(seconds_of(lambda g=given: each_alone(g)))
    for _ in range(TURNS):
        found.setdefault("plain chain", []).append(seconds_of(lambda: plain.chain(CHAIN)))
        found.setdefault("call chain", []).append(seconds_of(lambda: call(chain(CHAIN))))
        given = experiments(CHAIN)
        found.setdefault("run_exp chain", []).append(seconds_of(lambda g=given: each_after_the_other(g)))
    found["smallest"] = [seconds_of(lambda: call(experiments(1))) for _ in range(TURNS)]
    return found


def held(folder: str) -> dict[str, list[float]]:
    """From the end of a call to the end of its runners, and what they hold meanwhile."""
    import psutil

    ray = init_ray(folder)
    from governor.tasks import SchedulerConfig, execute_task_graph

    config = SchedulerConfig(idle_timeout=IDLE_SECONDS)
    runners = set(execute_task_graph([Where(n) for n in range(2 * CPUS)], config=config).values())
    ended = time.perf_counter()
    processes = [psutil.Process(pid) for pid in runners]
    memory = [process.memory_full_info().pss / 2**20 for process in processes]
    free = ray.available_resources().get("CPU", 0.0)
    psutil.wait_procs(processes, timeout=30)
    late = time.perf_counter() - ended - IDLE_SECONDS
    time.sleep(1.0)  # Ray tells of deaths by and by
    return {"late": [late], "memory": [sum(memory) / len(memory)], "free": [free]}


# -- the table ----------------------------------------------------------------------------------------------


def in_process(what: str) -> tuple[dict[str, list[float]], int]:
    """The figures of a process, and how often Ray told it of a death."""
    folder = tempfile.mkdtemp(prefix="bc-")
    try:
        ended = subprocess.run(
            [sys.executable, __file__, "--play", what, "--folder", folder],
            env={name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if ended.returncode:
        raise RuntimeError(f"{what}: {ended.stdout[-3000:]}")
    figures = next(line for line in reversed(ended.stdout.splitlines()) if line.startswith("{"))
    return json.loads(figures), ended.stdout.count(DEATH)


def compared(found: dict[str, list[float]], side: str, name: str, size: int, **aim: Any) -> Row:
    ours, theirs = found[f"{side} {size or 'chain'}"], found[f"plain {size or 'chain'}"]
    if size:
        rates = [size / each for each in ours]
        figure, note = p50(theirs) / p50(ours), spread(rates, "experiments/s")
        note += f"; plain Ray {size / p50(theirs):,.0f}"
    else:
        figure = p50(ours) / p50(theirs)
        note = f"{p50(ours) / CHAIN * 1000:.2f} ms against {p50(theirs) / CHAIN * 1000:.2f} ms"
    return Row(what=name, figure=figure, unit="x plain Ray", note=note, **aim)


def rows() -> Iterator[Row]:
    deaths, ours, floor = 0, [], []
    for _ in range(FIRST_TURNS):
        for what, into in (("first_call", ours), ("first_actor", floor)):
            found, told = in_process(what)
            into.extend(found["first"])
            deaths += told
    yield Row(
        what=f"first call, {CPUS} no-op experiments, Ray initialized",
        figure=p50(ours),
        unit="s",
        at_most=0.5,
        note=f"{spread(ours, 's')}; {CPUS} plain actors: {p50(floor):.2f} s",
        if_missed="Ray itself imports numpy and pyarrow at a driver's first remote call",
    )
    yield Row(
        what="the same, of the first call of as many plain actors", figure=p50(ours) / p50(floor), unit="x"
    )
    found, told = in_process("later_calls")
    deaths += told
    yield Row(
        what="each later call: one no-op experiment",
        figure=p50(found["smallest"]) * 1000,
        unit="ms",
        note=spread([each * 1000 for each in found["smallest"]], "ms"),
    )
    for side, name in (("call", "second call on"), ("run_exp", "run_exp.remote, one by one")):
        aims: dict[str, Any] = {} if side == "run_exp" else {"at_least": 15.0, "if_missed": MISSED}
        for number in (1_000, 10_000):
            yield compared(found, side, f"{name}: {number:,} no-op experiments", number, **aims)
        yield compared(found, side, f"{name}: chain of {CHAIN}, per hop", 0, at_most=0.3)
    found, told = in_process("held")
    deaths += told
    yield Row(
        what=f"idle runners end after their idle time of {IDLE_SECONDS:g} s, later by",
        figure=found["late"][0],
        unit="s",
        at_most=0.5,
        note=f"{found['free'][0]:g} of {CPUS} CPUs free for others meanwhile; {found['memory'][0]:.0f} MB each",
    )
    yield Row(what=f'"{DEATH}" on the terminal', figure=deaths, unit="lines", at_most=0)


def measure() -> list[Row]:
    return list(rows())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--play")
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    if arguments.play:
        print(json.dumps(globals()[arguments.play](arguments.folder)), flush=True)
    else:
        print(table(measure()))

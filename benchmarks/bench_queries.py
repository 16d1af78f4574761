"""A daemon with 10,000 ended and 1,500 queued runs: its start, `status`, `list`, and how long its event loop is blocked at most. Then one
without any: how many questions and submits it answers in a second, and what one who watches a run costs.

The journal is filled by its own writers. What a question costs the loop is the growth of `StatusReport.loop.busy` over it.
`python benchmarks/bench_queries.py` takes about a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
from support.instance import HERE, Instance
from support.process_tree import memory
from support.rows import Row, p50, spread, table

from governor.executor import Executor
from governor.journal.journal import Journal
from governor.messages import EpisodeRecord, PhaseResult, RunResult, TaskRecord
from governor.run_file.load import parse
from governor.runs.assignment import new_uid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from governor.journal.tables import Transaction

ENDED = 10_000
QUEUED = 1_500
EPISODES = 40
TASKS = 20
BATCH = 250
"""Runs that are filled in at once."""
REPEAT = 30
PRUNED = 300
SHOWN = 100
RATE_SECONDS = 2.0
WATCHERS = 100
MANY: dict[str, Any] = {
    "name": "many",
    "conductors": {
        "environments": {"world": {"entry": "user_code.step_world:Endless"}},
        "agents": {"walker": {"entry": "user_code.step_agent:TrivialAgent"}},
    },
    "phases": [
        {
            "name": "walk",
            "simulate": {
                "environment": "world",
                "agents": ["walker"],
                "episodes": 2_000,
                "max_steps": 10,
                "transport": "in_process",
            },
        }
    ],
}
METRICS = {
    f"{name}_{of}": 0.5 * number
    for number, name in enumerate(("return", "steps"))
    for of in ("mean", "std", "min", "max")
}
CONDUCTORS = ("environment.world", "agent.walker", "simulation", "tasks")


def _run(world: str) -> dict[str, Any]:
    return {
        "name": "sweep",
        "conductors": {
            "environments": {"world": {"entry": f"user_code.step_world:{world}"}},
            "agents": {"walker": {"entry": "user_code.step_agent:TrivialAgent"}},
        },
        "phases": [
            {
                "name": "train",
                "simulate": {
                    "environment": "world",
                    "agents": ["walker"],
                    "episodes": EPISODES,
                    "max_steps": 100_000,
                },
            },
            {
                "name": "analyse",
                "tasks": [
                    {
                        "id": f"fit-{task}",
                        "call": "user_code.step_tasks:wait",
                        "args": {"rate": 0.1 * task, "fold": task},
                    }
                    for task in range(TASKS)
                ],
            },
        ],
        "limits": {"wall_clock": "1h"},
    }


def _tasks() -> list[TaskRecord]:
    return [
        TaskRecord(
            task=f"fit-{task}",
            run=0,
            outcome="succeeded",
            attempts=1,
            seconds=0.1,
            value=[0.1 * task] * 8,
            metrics=METRICS,
        )
        for task in range(TASKS)
    ]


def _end(transaction: Transaction, uid: str, folder: Path) -> None:
    """What a run that finishes leaves on record."""
    transaction.started(uid)
    transaction.event(uid, "run.assigned", {"at": 1.0})
    for conductor in CONDUCTORS:
        transaction.event(uid, "conductor.started", {"conductor": conductor, "incarnation": 1, "at": 1.0})
        transaction.event(uid, "conductor.ready", {"conductor": conductor, "incarnation": 1, "at": 2.0})
    episodes = [
        EpisodeRecord(
            index=index, worker=0, seed=index, outcome="truncated", value=0.5, steps=100, seconds=0.1
        )
        for index in range(EPISODES)
    ]
    tasks = _tasks()
    transaction.event(uid, "phase.started", {"phase": "train", "index": 0})
    transaction.episodes(uid, 0, episodes)
    transaction.event(
        uid, "phase.ended", {"phase": "train", "index": 0, "end": "max_episodes", "metrics": METRICS}
    )
    transaction.event(uid, "phase.started", {"phase": "analyse", "index": 1})
    transaction.tasks(uid, 1, tasks)
    transaction.event(uid, "phase.ended", {"phase": "analyse", "index": 1, "end": "tasks_done"})
    transaction.event(uid, "run.ended", {"outcome": "finished", "reason": ""})
    phases = (
        PhaseResult(
            name="train", mode="train", end="max_episodes", episodes={"truncated": EPISODES}, metrics=METRICS
        ),
        PhaseResult(name="analyse", mode="train", end="tasks_done", tasks=tuple(tasks)),
    )
    result = RunResult(
        uid=uid,
        name=uid,
        outcome="finished",
        reason="",
        submitted_at=1.0,
        started_at=1.0,
        ended_at=9.0,
        phases=phases,
        folder=str(folder),
        seconds=8.0,
    )
    transaction.outcome(result)
    transaction.ended(uid)


async def fill(state: Path, *, ended: int = ENDED, queued: int = QUEUED) -> None:
    """A journal and the folders of runs. The first queued run stays in work for as long as it is let."""
    journal = Journal(state / "governor.db")
    specs = {world: parse(_run(world), "run").raw() for world in ("Endless", "Waiting")}
    runs = [(number, number < ended) for number in range(ended + queued)]
    for start in range(0, len(runs), BATCH):

        def change(
            transaction: Transaction, some: Sequence[tuple[int, bool]] = runs[start : start + BATCH]
        ) -> None:
            for number, is_ended in some:
                uid = new_uid()
                spec = {
                    **specs["Waiting" if number == ended else "Endless"],
                    "name": f"sweep-{number}",
                    "seed": number,
                }
                transaction.submit(
                    uid=uid, key=uid, name=spec["name"], spec=spec, folder=str(HERE), digest=b"d" * 16
                )
                if is_ended:
                    _end(transaction, uid, state / "runs" / uid)
                    (state / "runs" / uid).mkdir(parents=True)
                    (state / "runs" / uid / "run.json").write_text("{}")

        await journal.write(change)
    await journal.close()


class _Asked:
    """Seconds of each answer, from outside, and of the event loop."""

    def __init__(self) -> None:
        self.outside: list[float] = []
        self.loop: list[float] = []


async def _ask(instance: Instance, question: Callable[[], Awaitable[Any]] | None, own: float = 0.0) -> _Asked:
    """`own`: what the `status` costs that reads the loop's time; None asks for that alone."""
    asked = _Asked()
    before = await _busy(instance)
    for _ in range(REPEAT):
        begun = perf_counter()
        if question is not None:
            await question()
            asked.outside.append(1000 * (perf_counter() - begun))
        after = await _busy(instance)
        if question is None:
            asked.outside.append(1000 * (perf_counter() - begun))
        asked.loop.append(1000 * (after - before) - own)
        before = after
    return asked


async def _busy(instance: Instance) -> float:
    loop = (await instance.executor.status()).loop
    assert loop is not None
    return loop.busy


def _row(what: str, asked: _Asked, at_most: float) -> Row:
    return Row(
        what=f"{what}: event loop",
        figure=p50(asked.loop),
        unit="ms",
        at_most=at_most,
        note=f"{spread(asked.loop, 'ms')}; from outside {p50(asked.outside):.1f} ms",
    )


async def _measure(folder: Path) -> list[Row]:
    async with Instance() as empty:
        bare, bare_rss = empty.seconds_to_ready, memory(empty.daemon_pid).rss
    begun = perf_counter()
    await fill(folder / "s")
    filled = perf_counter() - begun
    async with Instance("--queue-limit", "10000", folder=folder) as instance:
        executor, rss = instance.executor, memory(instance.daemon_pid).rss
        check = instance.said["journal.checked"]
        status = await _ask(instance, None)
        listed = await _ask(instance, lambda: executor.list(SHOWN), own=p50(status.loop))
        page = await executor.list(10_000)
        assert len(page.runs) == 10_000
        assert page.more
        last = page.runs[0].uid
        explained = await _ask(instance, lambda: executor.explain(last), own=p50(status.loop))
        watched = await _ask(instance, lambda: _events(instance, page.runs[-1].uid), own=p50(status.loop))
        pruned = await executor.prune(keep_runs=ENDED - PRUNED)
        assert len(pruned.uids) == PRUNED
        report = await executor.status()
        assert report.loop is not None
        assert report.counts is not None
        return [
            Row(
                what="start, besides the check of the journal's file",
                figure=instance.seconds_to_ready - check["seconds"],
                unit="s",
                at_most=2.0,
                note=f"the check: {check['seconds']:.2f} s for {check['bytes'] / 1e6:.0f} MB; a daemon without runs "
                f"starts in {bare:.2f} s; filled in {filled:.0f} s",
                if_missed="what is beyond the start without runs is theirs",
            ),
            _row(f"`status`, {report.counts.queued:,} queued", status, 5.0),
            _row(f"`list` of {SHOWN}", listed, 3.0),
            _row("`explain` of the last one queued", explained, 5.0),
            _row(
                f"`watch` of {len(await _events(instance, page.runs[-1].uid))} events on record", watched, 5.0
            ),
            Row(
                what="RSS of the daemon when ready",
                figure=rss,
                unit="MB",
                at_most=100.0,
                note=f"of the one without runs {bare_rss:.0f} MB",
            ),
            Row(
                what="longest block of the event loop",
                figure=1000 * (await executor.status()).loop.longest,  # type: ignore[union-attr]
                unit="ms",
                at_most=50.0,
                note=f"meanwhile all of these, a list of 10,000 and a prune of {PRUNED} runs",
            ),
        ]


async def _events(instance: Instance, uid: str) -> list[Any]:
    return [event async for event in instance.executor.watch(uid, follow=False)]


async def _rate(ask: Callable[[], Awaitable[Any]], at_once: int) -> float:
    """A second, with so many in flight."""
    done, begun = 0, perf_counter()

    async def one() -> None:
        nonlocal done
        while perf_counter() < begun + RATE_SECONDS:
            await ask()
            done += 1

    await asyncio.gather(*(one() for _ in range(at_once)))
    return done / (perf_counter() - begun)


async def _rates() -> list[Row]:
    """Of `status`, and of submits of a small run, which wait: the daemon is drained."""
    async with Instance("--queue-limit", "100000") as instance:
        executor = instance.executor
        await executor.drain()
        questions = {"status": executor.status, "submit": lambda: executor.submit(MANY, folder=HERE)}
        return [
            Row(
                what=f"`{name}`, {'one at a time' if at_once == 1 else f'{at_once} at once'}",
                figure=await _rate(questions[name], at_once),
                unit="a second",
                at_least=at_least,
            )
            for name, at_once, at_least in (
                ("status", 1, 600.0),
                ("status", 16, 2_000.0),
                ("submit", 1, 150.0),
                ("submit", 16, 400.0),
            )
        ]


async def _watched(watchers: int) -> tuple[float, int]:
    """The daemon's CPU seconds over a run of many episodes, and its events."""
    async with Instance() as instance:
        daemon = psutil.Process(instance.daemon_pid)

        async def follow(executor: Executor) -> int:
            return len([event async for event in executor.watch(uid)])

        async with contextlib.AsyncExitStack() as stack:
            endpoint = instance.executor.endpoint
            executors = [await stack.enter_async_context(Executor(endpoint)) for _ in range(watchers)]
            before = daemon.cpu_times()
            uid = await instance.executor.submit(MANY, folder=HERE)
            [seen, *_] = await asyncio.gather(*map(follow, (instance.executor, *executors)))
            after = daemon.cpu_times()
    return after.user + after.system - before.user - before.system, seen


async def _watchers() -> list[Row]:
    alone, beside = [], []
    for _ in range(3):
        alone.append(await _watched(0))
        beside.append(await _watched(WATCHERS))
    events = beside[0][1]
    more = p50([cpu for cpu, _ in beside]) - p50([cpu for cpu, _ in alone])
    return [
        Row(
            what=f"{WATCHERS} that watch one run: CPU of the daemon an event and watcher",
            figure=1e6 * more / (WATCHERS * events),
            unit="µs",
            at_most=4.0,
            note=f"{events:,} events; {spread([cpu for cpu, _ in beside], 's')}, with one {p50([cpu for cpu, _ in alone]):.2f} s",
        )
    ]


def measure() -> list[Row]:
    rows = asyncio.run(_rates()) + asyncio.run(_watchers())
    with tempfile.TemporaryDirectory(prefix="gb-", ignore_cleanup_errors=True) as name:
        (Path(name) / "s").mkdir(mode=0o700)
        return asyncio.run(_measure(Path(name))) + rows


if __name__ == "__main__":
    print(table(measure()))

"""What serves a run is there while the run is in work, and gone with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from governor.journal.journal import Journal
from governor.metrics import Metrics
from governor.processes import cgroups
from governor.run_file.load import parse
from governor.runs import active_run
from governor.runs.active_run import ActiveRun
from governor.runs.assignment import Assignment
from states import Pristine, events
from states.effects import StartConductor, StopConductor, Wake, WriteResult
from transport.access import Secret

RUN = parse(
    {
        "name": "r",
        "conductors": {"environments": {"lake": {"entry": "m:E"}}, "agents": {"walker": {"entry": "m:A"}}},
        "phases": [{"name": "p", "simulate": {"environment": "lake", "agents": ["walker"], "episodes": 9}}],
    }
)


async def never(*_, **__):
    await asyncio.Event().wait()


class World:
    """What a run needs of its daemon and of its governor; `open` names what it has opened and not closed."""

    def __init__(self, folder):
        self.open = set()
        self.posted = asyncio.Queue()
        self.failures = []
        self.journal = Journal(folder / "governor.db")
        self.journal.make_room = self.failures.append
        secret = Secret.new()
        context = SimpleNamespace(
            worker_endpoint="ipc://worker",
            private_endpoint="ipc://private",
            log_format="json",
            log_level="info",
            secret=secret,
            run_secret=lambda uid: secret.of(uid.encode()),
            run_folder=lambda uid: folder / "runs" / uid,
            socket_folder=lambda uid: folder / "sockets" / uid,
            files=SimpleNamespace(watched=lambda run: self.opened("watch")),
            output=SimpleNamespace(begin=lambda folder: None, end=lambda uid: None),
            client=SimpleNamespace(request=never),
            journal=self.journal,
            metrics=Metrics(),
        )
        governor = SimpleNamespace(
            state=Pristine(),
            post=lambda event, detail: self.posted.put_nowait(event),
        )
        self.run = ActiveRun(Assignment(uid="r1", run=RUN, folder="/"), context=context, governor=governor)

    @contextlib.contextmanager
    def opened(self, name):
        self.open.add(name)
        try:
            yield
        finally:
            self.open.remove(name)

    @contextlib.asynccontextmanager
    async def worker(self, endpoint, service, handler, **_):
        with self.opened(service):
            yield


@pytest.fixture
async def world(tmp_path, monkeypatch):
    made = World(tmp_path)
    monkeypatch.setattr(active_run, "Worker", made.worker)
    yield made
    await made.journal.close()


def tasks_of(run):
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(run.uid)]


async def test_a_result_waits_for_what_the_run_was_made_with_but_not_for_ever(world, monkeypatch):
    await world.journal.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=RUN.raw(), folder="/"))
    write, recorded = WriteResult(outcome="finished", reason=""), asyncio.Event()
    world.run._environment = asyncio.create_task(recorded.wait())
    world.run.effects.perform(write)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await world.posted.get()
    recorded.set()
    assert (await world.posted.get()).kind == "result.written"
    world.run._environment = asyncio.create_task(never())
    monkeypatch.setattr(active_run, "ENVIRONMENT_SECONDS", 0.01)
    world.run.effects.perform(write)
    assert (await world.posted.get()).kind == "result.written"
    world.run._environment.cancel()


async def test_it_opens_what_it_needs_and_closes_all_of_it(world):
    run = world.run
    async with run:
        assert json.loads((run.folder / "run.json").read_text()) == RUN.raw()
        assert run.socket_folder.is_dir()
        assert world.open == {"watch", "run.r1"}
        run.spawn(never(), "work")
        run.effects.perform(Wake(name="stop", at=0.0))
        assert (await world.posted.get()).name == "stop"
        run.effects.perform(Wake(name="stop", at=1e12))
        assert list(run.effects.deadlines) == [("stop", "")]
        left = run.spawn(never(), "left")
        run.leave(left)
    assert world.open == set()
    assert tasks_of(run) == [left]
    left.cancel()


async def test_what_can_t_be_opened_leaves_nothing_open(world, monkeypatch):
    def fail(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr(active_run, "write_whole", fail)
    with pytest.raises(OSError, match="no room"):
        await world.run.__aenter__()
    assert world.open == set()
    assert tasks_of(world.run) == []


async def test_a_task_that_fails_is_logged_and_the_others_go_on(world):
    async def fail():
        raise OSError("no room")

    async with world.run as run:
        other = run.spawn(never(), "other")
        with capture_logs() as logged:
            await asyncio.wait({run.spawn(fail(), "failing")})
            await asyncio.sleep(0)
        assert [(line["event"], line["effect"]) for line in logged] == [("effect.failed", "r1.failing")]
        assert [str(error) for error in world.failures] == ["no room"]
        assert not other.done()


async def test_a_conductor_that_is_stopped_before_its_process_has_started_has_exited_once(world):
    async with world.run as run:
        start = StartConductor(conductor="simulation", kind="simulation", incarnation=2, delay=60.0)
        run.effects.perform(start)
        await asyncio.sleep(0)
        for incarnation in (1, 2, 2):
            stop = StopConductor(conductor="simulation", incarnation=incarnation, first="SIGKILL")
            run.effects.perform(stop)
        exited = await world.posted.get()
        assert isinstance(exited, events.ConductorExited)
        assert (exited.conductor, exited.incarnation, exited.exit_code) == ("simulation", 2, None)
    assert world.posted.empty()


async def test_an_error_of_ours_ends_a_start_and_a_result_at_once(world, monkeypatch):
    """Else the run would wait for both until its deadlines, and a daemon that goes down for ever."""

    async def fail(*_, **__):
        raise LookupError("a fault of ours")

    monkeypatch.setattr("governor.runs.conductor_process.process.start", fail)
    monkeypatch.setattr("governor.runs.effects.record_result", fail)
    async with asyncio.timeout(20), world.run as run:
        start = StartConductor(conductor="simulation", kind="simulation", incarnation=1, delay=0.0)
        run.effects.perform(start)
        exited = await world.posted.get()
        assert (exited.exit_code, exited.reason) == (None, "LookupError: a fault of ours")
        run.effects.perform(WriteResult(outcome="finished", reason=""))
        failed = await world.posted.get()
        assert (failed.kind, failed.reason) == ("result.failed", "LookupError: a fault of ours")


@pytest.mark.parametrize(("kills", "reason"), [(0, ""), (1, "the kernel killed it for lack of memory")])
async def test_a_conductor_that_the_kernel_has_killed_for_memory_says_so(
    world, tmp_path, monkeypatch, kills, reason
):
    monkeypatch.setattr(cgroups, "of_service", lambda: tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    async with world.run as run:
        start = StartConductor(conductor="simulation", kind="simulation", incarnation=1, delay=0.0)
        run.effects.perform(start)
        started = await world.posted.get()
        (tmp_path / "memory.events").write_text(f"oom_kill {kills}\n")
        os.kill(started.pid, signal.SIGKILL)
        exited = await world.posted.get()
        assert (exited.exit_code, exited.reason) == (-signal.SIGKILL, reason)

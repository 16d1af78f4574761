"""The public attributes of a run governor, before, during and after a run; its effects are recorded, not performed."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from types import SimpleNamespace

import pytest

from governor.errors import TryAgain
from governor.journal.journal import Journal
from governor.metrics import Metrics
from governor.run_file.load import parse
from governor.runs import active_run, run_governor
from governor.runs.assignment import Assignment
from governor.runs.effects import EffectRunner
from governor.runs.run_governor import RunGovernor
from states import events
from states.effects import BeginPhase
from transport.access import Secret

RUN = parse(
    {
        "name": "r",
        "conductors": {"environments": {"lake": {"entry": "m:E"}}, "agents": {"walker": {"entry": "m:A"}}},
        "phases": [
            {
                "name": "p",
                "simulate": {"environment": "lake", "agents": ["walker"], "episodes": 9},
                "until": [{"metric": "return", "average_over": 2, "at_least": 0.5}],
            }
        ],
    }
)
NAMES = ("agent.walker", "environment.lake", "simulation")


class RecordingEffects(EffectRunner):
    """Every conductor has a process, and nothing is started."""

    deadlines = {("start", ""): 60.0}  # noqa: RUF012
    processes = {name: SimpleNamespace(pid=100 + n, mark=n) for n, name in enumerate(NAMES)}  # noqa: RUF012

    def perform(self, effect):
        if isinstance(effect, BeginPhase):
            super().perform(effect)


async def never(*_, **__):
    await asyncio.Event().wait()


@pytest.fixture
async def governor(tmp_path, monkeypatch):
    monkeypatch.setattr(active_run, "EffectRunner", RecordingEffects)
    monkeypatch.setattr(active_run, "Worker", lambda *_, **__: contextlib.AsyncExitStack())
    journal = Journal(tmp_path / "governor.db")
    await journal.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=RUN.raw(), folder="/"))
    secret = Secret.new()
    context = SimpleNamespace(
        journal=journal,
        secret=secret,
        run_secret=lambda uid: secret.of(uid.encode()),
        run_folder=lambda uid: tmp_path / "runs" / uid,
        socket_folder=lambda uid: tmp_path / "sockets" / uid,
        files=SimpleNamespace(watched=lambda run: contextlib.nullcontext(), missing=lambda run: None),
        output=SimpleNamespace(begin=lambda folder: None, end=lambda uid: None),
        client=SimpleNamespace(request=never),
        worker_endpoint="ipc://worker",
        metrics=Metrics(),
    )
    governor = RunGovernor("ipc://worker", "slot-0")
    governor.attach(context)
    loop = asyncio.create_task(governor.handle_events())
    yield governor
    loop.cancel()
    await asyncio.wait({loop})
    await journal.close()


async def started(governor):
    await governor.assign(Assignment(uid="r1", run=RUN, folder="/"))
    for pid, name in enumerate(NAMES, start=100):
        about = {"run": "r1", "at": time.monotonic(), "conductor": name, "incarnation": 1}
        await governor.handle(events.ConductorStarted(**about, pid=pid, ticks=1, boot="b"))
        await governor.handle(events.ConductorReady(**about))


async def test_a_run_that_is_being_assigned_can_be_aborted(governor):
    assigning = asyncio.create_task(governor.assign(Assignment(uid="r1", run=RUN, folder="/")))
    await asyncio.sleep(0)
    assert governor.state.name == "pristine"
    await governor.abort("r1", "at once")
    await assigning
    assert governor.state.name == "finalizing"


def test_without_a_run_its_attributes_are_empty():
    governor = RunGovernor("ipc://worker")
    assert (governor.broker_uri, governor.state.name) == ("ipc://worker", "pristine")
    assert uuid.UUID(governor.uid.removeprefix("RunGovernor-")).version == 4
    assert RunGovernor("ipc://worker").uid != governor.uid
    assert (governor.errors, governor.dead_children) == ([], [])
    assert (governor.experiment_run, governor.experiment_run_id, governor.termination_condition) == (
        None,
        None,
        (),
    )
    assert (governor.current_phase, governor.current_episode) == (0, 0)
    assert (governor.agent_conductors, governor.env_conductors, governor.sim_controllers) == ({}, {}, {})
    assert (governor.stopping, governor.shutdown, governor.is_free) == (False, False, True)


async def test_during_a_run_they_name_the_run_its_phase_and_its_processes(governor):
    await started(governor)
    assert (governor.uid, governor.state.name) == ("slot-0", "running")
    assert (governor.experiment_run, governor.experiment_run_id) == (RUN, "r1")
    assert (governor.current_phase, governor.current_episode) == (0, 0)
    assert [condition.at_least for condition in governor.termination_condition] == [0.5]
    assert {name: process.pid for name, process in governor.agent_conductors.items()} == {"agent.walker": 100}
    assert list(governor.env_conductors) == ["environment.lake"]
    assert list(governor.sim_controllers) == ["simulation"]
    assert (governor.stopping, governor.shutdown, governor.is_free) == (False, False, False)
    assert governor.deadlines == {("start", ""): 60.0}


async def test_an_unexpected_exit_is_among_the_dead_children(governor):
    await started(governor)
    at = time.monotonic()
    await governor.handle(
        events.ConductorExited(run="r1", at=at, conductor="simulation", incarnation=1, exit_code=-9)
    )
    assert governor.dead_children == ["simulation"]
    assert governor.state.name == "running"


async def test_a_second_run_is_refused_and_the_error_names_the_last_transitions(governor):
    await started(governor)
    with pytest.raises(
        TryAgain, match=r"Last steps of this slot: pristine -> starting .*; starting -> running"
    ):
        await governor.assign(Assignment(uid="r2", run=RUN, folder="/"))
    assert governor.experiment_run_id == "r1"


async def test_a_stop_ends_the_run_and_then_the_governor(governor):
    await started(governor)
    governor.post_stop("shutting down", urgent=True)
    for name in NAMES:
        exited = events.ConductorExited(
            run="r1", at=time.monotonic(), conductor=name, incarnation=1, exit_code=0
        )
        await governor.handle(exited)
        assert governor.stopping
        assert not governor.shutdown
    await governor.handle(events.TracesRemoved(run="r1", at=time.monotonic()))
    assert (governor.stopping, governor.shutdown) == (False, True)
    assert (governor.experiment_run, governor.dead_children, governor.env_conductors) == (None, [], {})


async def test_a_crash_inside_a_state_is_kept_with_the_state_and_raised(monkeypatch):
    def crash(state, event):
        raise ValueError("a bug")

    monkeypatch.setattr(run_governor, "advance", crash)
    governor = RunGovernor("ipc://worker")
    governor.post_stop("shutting down")
    with pytest.raises(ValueError, match="a bug"):
        await governor.handle_events()
    [(error, state)] = governor.errors
    assert (str(error), state) == ("a bug", "pristine")

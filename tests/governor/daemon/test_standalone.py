"""A `RunGovernor` in a script of its own, as users of palaestrAI build it: cases of its RunGovernor and Executor, then brokers."""

from __future__ import annotations

import signal

import pytest

from governor import RunGovernor
from governor.errors import UsageError

# -- cases of palaestrAI's RunGovernor and Executor ---------------------------------------------------------------------


@pytest.mark.system
def test_experiment_run_start_request(play):
    script = play(
        """
        uid = await executor.submit(run())
        await until(executor, uid, "phase.started")
        conductors = governor.env_conductors, governor.agent_conductors, governor.sim_controllers
        tell(
            uid=governor.uid, state=governor.state.name, ours=governor.experiment_run_id == uid, run=governor.experiment_run.name,
            phase=governor.current_phase, conditions=[each.at_least for each in governor.termination_condition],
            conductors={name: os.path.exists(f"/proc/{process.pid}") for each in conductors for name, process in each.items()},
            garbage=(gc.isenabled(), gc.get_freeze_count()),
        )
        [status] = (await executor.status(uid)).runs
        tell(state=status.state)
        await executor.abort(uid, "enough")
        result = await executor.wait(uid)
        governor.shutdown = True
        await running
        tell(outcome=result.outcome, reason=result.reason, run=governor.experiment_run, errors=len(governor.errors))
        """
    )
    assert script.told() == {
        "uid": "governor-0",
        "state": "running",
        "ours": True,
        "run": "small",
        "phase": 0,
        "conditions": [2.0],
        "conductors": {"environment.world": True, "agent.walker": True, "simulation": True},
        "garbage": [True, 0],
    }
    assert script.told() == {"state": "running"}
    code, told, log = script.end()
    assert (code, told) == (0, [{"outcome": "aborted", "reason": "enough", "run": None, "errors": 0}]), log


@pytest.mark.system
def test_experiment_run_already_exists_and_the_second_one_waits(play):
    script = play(
        """
        first, second, third = [await executor.submit(run(episodes=n)) for n in (10**7, 2, 10**7)]
        tell(waits_for=(await executor.status(second)).runs[0].waits_for)
        await executor.abort(third, "not needed")
        await executor.abort(first)
        tell(outcomes=[(await executor.wait(uid)).outcome for uid in (first, second, third)])
        governor.shutdown = True
        await running
        """
    )
    code, told, log = script.end()
    assert code == 0, log
    assert told == [
        {"waits_for": "a free slot (0 runs before it)"},
        {"outcomes": ["aborted", "finished", "aborted"]},
    ]


@pytest.mark.system
def test_run_state_change_shutdown_ends_the_runs_and_then_run_returns(play):
    script = play(
        """
        uids = [await executor.submit(run()) for _ in range(3)]
        await until(executor, uids[0], "phase.started")
        ends = [asyncio.create_task(executor.wait(uid)) for uid in uids]
        watched = [asyncio.create_task(until(executor, uid, "run.ended")) for uid in uids]
        await asyncio.sleep(0)
        await executor.status()
        before = governor.shutdown
        threading.Thread(target=setattr, args=(governor, "shutdown", True)).start()
        tell(reasons=[(await end).reason for end in ends])
        await running
        tell(shutdown=(before, governor.shutdown), state=governor.state.name, run=governor.experiment_run_id, errors=len(governor.errors))
        await governor.run()  # it stays over
        try:
            governor.shutdown = False
        except UsageError as error:
            tell(error=str(error))
        another = RunGovernor(broker.worker_endpoint)
        serving = asyncio.create_task(another.run())
        async with Executor(broker.client_endpoint, service=another.uid) as client:
            tell(outcome=(await client.wait(await client.submit(run(episodes=2)))).outcome)
        another.shutdown = True
        await serving
        """
    )
    code, told, log = script.end()
    assert code == 0, log
    assert told == [
        {"reasons": ["shutdown was set"] * 3},
        {"shutdown": [False, True], "state": "pristine", "run": None, "errors": 0},
        {"error": "a shutdown can't be taken back: build another RunGovernor"},
        {"outcome": "finished"},
    ]


@pytest.mark.system
def test_shutdown_request_stops_and_responds(play):
    script = play(
        """
        uid = await executor.submit(run())
        await until(executor, uid, "phase.started")
        end = asyncio.create_task(executor.wait(uid))
        other = await asyncio.create_subprocess_exec("sleep", "3600")
        await executor.stop("the machine is needed")
        tell(reason=(await end).reason)
        await running
        tell(others_live=other.returncode is None)
        other.kill()
        await other.wait()
        """
    )
    code, told, log = script.end()
    assert (code, told) == (0, [{"reason": "the machine is needed"}, {"others_live": True}]), log


@pytest.mark.system
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGKILL, None)])
def test_each_process_has_a_run_governor_as_palaestrais_executor_starts_them(play, number, reason):
    script = play(
        f"""
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=serve, args=(broker.worker_endpoint, "governor-1"))
        child.start()
        async with Executor(broker.client_endpoint, service="governor-1") as other:
            first, second = await executor.submit(run()), await other.submit(run(detaches=True))
            await until(other, second, "phase.started")
            end = asyncio.create_task(other.wait(second))
            os.kill(child.pid, {int(number)})
            if {reason!r}:
                tell(reason=(await end).reason)
            end.cancel()
        await asyncio.to_thread(child.join)
        tell(exit_code=child.exitcode)
        await asyncio.to_thread(wait_until_dead, int(open("detached").read()))
        await until(executor, first, "phase.started")
        await executor.abort(first)
        tell(outcome=(await executor.wait(first)).outcome, dead=governor.dead_children)
        governor.shutdown = True
        await running
        """
    )
    code, told, log = script.end()
    ends = [{"exit_code": -number}, {"outcome": "aborted", "dead": []}]
    assert (code, told) == (0, [{"reason": reason}, *ends] if reason else ends), log


def test_a_run_governor_is_built_without_a_broker():
    governor = RunGovernor(None, None)
    assert governor.uid.startswith("RunGovernor-")
    assert (governor.state.name, governor.current_phase, governor.shutdown) == ("pristine", 0, False)


@pytest.mark.parametrize(
    ("broker", "uid", "error"),
    [
        (None, "g", "bad endpoint 'None': expected ipc:///path or tcp://address:port"),
        ("example://none", "g", "bad endpoint 'example://none'"),
        ("ipc:///tmp/workers", "é", "a service name has 1 to 255 printable ASCII characters"),
        ("ipc:///tmp/workers", "\udcff", "a service name has 1 to 255 printable ASCII characters"),
        ("ipc:///tmp/workers", "mmi.x", "'mmi.x' is a service of the broker itself"),
    ],
)
async def test_what_makes_no_sense_is_refused_when_it_runs(broker, uid, error):
    with pytest.raises(UsageError, match=error):
        await RunGovernor(broker, uid).run()


# -- brokers --------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_broker_that_goes_away_disturbs_no_run(play):
    script = play(
        """
        uid = await executor.submit(run(episodes=3000))
        await until(executor, uid, "phase.started")
        await broker.aclose()
        async with Broker(SETTINGS):
            tell(outcome=(await executor.wait(uid)).outcome)
            governor.shutdown = True
            await running
        """
    )
    code, told, log = script.end()
    assert (code, told) == (0, [{"outcome": "finished"}]), log


@pytest.mark.system
def test_who_can_not_serve_is_told_why(play):
    script = play(
        """
        from governor.daemon import daemon
        async def error_of(call):
            try:
                await call
            except GovernorError as error:
                tell(error=type(error).__name__, text=str(error))
        await error_of(RunGovernor(broker.worker_endpoint).run())  # a second one in this process
        uid = await executor.submit(run(episodes=2))
        await executor.wait(uid)
        other = "import asyncio, sys, governor; asyncio.run(governor.RunGovernor(*sys.argv[1:]).run())"
        command = [sys.executable, "-c", other, broker.worker_endpoint, "governor-0"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        tell(last=(await process.communicate())[1].decode().splitlines()[-1])
        governor.shutdown = True
        await running
        daemon.REGISTER_SECONDS = 0.1
        lost = RunGovernor("ipc:///nowhere")
        await error_of(lost.run())
        await error_of(lost.run())
        await asyncio.to_thread(lambda: asyncio.run(error_of(RunGovernor(broker.worker_endpoint).run())))
        """
    )
    code, told, log = script.end()
    assert code == 0, log
    assert [each.get("error") for each in told] == [
        "TryAgain",
        None,
        "Unreachable",
        "UsageError",
        "ProcessError",
    ]
    assert "has a RunGovernor at work" in told[0]["text"]
    assert "TryAgain: another RunGovernor 'governor-0' serves at" in told[1]["last"]
    assert "no broker registers this RunGovernor at ipc:///nowhere" in told[2]["text"]
    assert "has ended already (Unreachable" in told[3]["text"]
    assert "from the main thread only" in told[4]["text"]

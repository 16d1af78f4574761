"""A script with a `RunGovernor` of its own: how it ends, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.daemon.serving_script import SECONDS, processes
from tests.support.living import lives

AT_WORK = """
uid = await executor.submit(run(detaches=True))
await until(executor, uid, "phase.started")
tell(detached=int(open("detached").read()))
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_the_run_in_order_and_then_the_script(play, number):
    script = play(AT_WORK + "await running")
    detached = script.told()["detached"]
    script.process.send_signal(number)
    code, _, log = script.end()
    assert code == -number
    assert "outcome='aborted'" in log
    assert f"reason='{number.name}'" in log
    assert not lives(detached)


@pytest.mark.system
def test_a_second_signal_ends_it_at_once(play):
    script = play(AT_WORK + "await running")
    script.told()
    script.process.send_signal(signal.SIGSTOP)  # both are there when it goes on
    script.process.send_signal(signal.SIGINT)
    script.process.send_signal(signal.SIGTERM)
    script.process.send_signal(signal.SIGCONT)
    code, _, log = script.end()
    assert code in {-signal.SIGINT, -signal.SIGTERM}
    assert "signal='SIGKILL'" in log
    assert "signal='SIGTERM'" not in log


@pytest.mark.system
def test_a_killed_script_leaves_nothing(play):
    script = play(AT_WORK + "await running")
    detached = script.told()["detached"]
    assert lives(detached)
    script.process.kill()
    script.process.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(detached).wait(SECONDS)


@pytest.mark.system
@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("running.cancel(); tell(outcome=(await executor.wait(uid)).outcome); await running", "aborted"),
        ("raise ValueError('a fault of the script')", None),
    ],
    ids=["cancelled", "raised"],
)
def test_a_script_that_ends_while_it_serves_leaves_nothing(play, end, outcome):
    script = play(AT_WORK + end)
    detached = script.told()["detached"]
    code, told, log = script.end()
    assert code == 1, log
    assert [each["outcome"] for each in told] == ([outcome] if outcome else [])
    assert ("run.lost" in log) == (outcome is None)
    assert not lives(detached)


@pytest.mark.system
def test_handlers_of_the_script_get_their_signals(play):
    script = play(
        """
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(governor, "shutdown", True))
        uid = await executor.submit(run())
        await until(executor, uid, "phase.started")
        end = asyncio.create_task(executor.wait(uid))
        os.kill(os.getpid(), signal.SIGTERM)
        tell(reason=(await end).reason)
        await running
        """
    )
    code, told, log = script.end()
    assert (code, told) == (0, [{"reason": "shutdown was set"}]), log


@pytest.mark.system
@pytest.mark.parametrize(
    ("ask", "code"),
    [("lost.shutdown = True", 0), ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT)],
    ids=["shutdown", "Ctrl-C"],
)
def test_it_ends_at_once_while_no_broker_registers_it(play, ask, code):
    script = play(
        f"""
        governor.shutdown = True
        await running
        from governor.daemon import daemon
        daemon.REGISTER_SECONDS = 3600
        registered = daemon.Daemon.register
        async def register(self, into, uri, *others):
            if uri == lost.broker_uri:
                {ask}
            await registered(self, into, uri, *others)
        daemon.Daemon.register = register
        lost = RunGovernor("ipc:///nowhere")
        await lost.run()
        tell(shutdown=lost.shutdown)
        """
    )
    ended, told, log = script.end()
    assert (ended, told) == (code, [{"shutdown": True}]), log
    assert ("KeyboardInterrupt" in log) == (code != 0)


@pytest.mark.system
def test_a_fork_has_a_folder_of_its_own(play):
    script = play(
        """
        governor.shutdown = True
        await running
        fork = multiprocessing.get_context("fork")
        child = fork.Process(target=serve, args=(broker.worker_endpoint, "governor-1"))
        child.start()
        async with Executor(broker.client_endpoint, service="governor-1") as other:
            await other.status()
        sweepers = [each for each in os.popen("pgrep -P %d -x gov-sweeper" % child.pid).read().split()]
        child.kill()
        await asyncio.to_thread(child.join)
        for pid in sweepers:
            await asyncio.to_thread(wait_until_dead, int(pid))
        another = RunGovernor(broker.worker_endpoint, "governor-2")
        serving = asyncio.create_task(another.run())
        async with Executor(broker.client_endpoint, service="governor-2") as client:
            asked = asyncio.create_task(client.submit(run(episodes=2)))
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
            tell(sweepers=len(sweepers), outcome=serving.done() or (await client.wait(await asked)).outcome)
        another.shutdown = True
        await serving
        """
    )
    code, told, log = script.end()
    assert (code, told) == (0, [{"sweepers": 1, "outcome": "finished"}]), log


@pytest.mark.system
def test_records_are_in_the_folder_of_temporary_files_however_long_its_path(play, short_path):
    script = play(
        """
        governor.shutdown = True
        await running
        import tempfile
        from pathlib import Path
        tempfile.tempdir = str(Path(sys.argv[0]).parent / ("long" * 25))
        os.mkdir(tempfile.tempdir)
        another = RunGovernor(broker.worker_endpoint, "governor-1")
        serving = asyncio.create_task(another.run())
        async with Executor(broker.client_endpoint, service="governor-1") as client:
            uid = await client.submit(run())
            await until(client, uid, "phase.started")
            tell(records=len([*Path(tempfile.tempdir).glob(f"*/runs/{uid}")]))
            await serving
        """
    )
    assert script.told() == {"records": 1}
    script.process.kill()
    script.process.communicate()
    psutil.wait_procs(list(processes(short_path)), timeout=SECONDS)
    assert list(short_path.glob("long*/*")) == []


@pytest.mark.system
@pytest.mark.parametrize("room", [1, 2**60], ids=["with room in memory", "without"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "in order"])
def test_the_journal_is_in_memory_where_there_is_room_and_goes_with_the_script(
    play, short_path, room, killed
):
    script = play(
        f"""
        governor.shutdown = True
        await running
        from governor.daemon import standalone
        standalone.MEMORY_BYTES = {room}
        another = RunGovernor(broker.worker_endpoint, "governor-1")
        serving = asyncio.create_task(another.run())
        async with Executor(broker.client_endpoint, service="governor-1") as client:
            uid = await client.submit(run())
            await until(client, uid, "phase.started")
            found = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.exists(each.path)]
            tell(journals=sorted({{path for path in found if path.endswith("governor.db")}}))
            if {killed}:
                await serving
        another.shutdown = True
        await serving
        """
    )
    [journal] = script.told()["journals"]
    assert journal.startswith("/dev/shm/governor-" if room == 1 else str(short_path))
    if killed:
        script.process.kill()
    script.process.communicate()
    psutil.wait_procs(list(processes(short_path)), timeout=SECONDS)
    assert not Path(journal).parent.exists()

"""The forkserver: how it gets warm, forks, freezes and dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from governor.errors import ForkserverDied, ProcessError
from governor.processes import forkserver, process
from tests.support.living import lives

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("shut_down", "targets")


async def warm():
    process.warm_up(preload=False)
    return await process.warm()


class TestFork:
    async def test_a_dead_forkserver_is_replaced_and_its_children_are_seen_dead(self, news):
        report = await warm()
        child = await process.start(name="c", target="process_targets:nap", payload=news.address)
        await news()
        os.kill(report.pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            assert await child.wait() == -signal.SIGKILL
        assert not lives(child.pid)
        again = await process.start(name="d", target="process_targets:leave", payload=b"4")
        assert await again.wait() == 4
        assert (await process.warm()).pid != report.pid

    async def test_a_forkserver_that_is_frozen_at_a_fork_is_replaced(self, news):
        report = await warm()
        child = await process.start(name="c", target="process_targets:nap", payload=news.address)
        await news()
        os.kill(report.pid, signal.SIGSTOP)
        order = {"target": "process_targets:leave", "payload": b"4"}
        starts = [asyncio.create_task(process.start(name=name, **order)) for name in "de"]
        late = 0.0
        while not all(start.done() for start in starts):
            begin = time.perf_counter()
            await asyncio.sleep(0.01)
            late = max(late, time.perf_counter() - begin)
        assert late < 1
        for start in starts:
            with pytest.raises(ForkserverDied, match="was killed: silent for 5 s") as caught:
                await start
            assert caught.value.pid == report.pid
        assert await child.wait() == -signal.SIGKILL
        assert child.lost_forkserver == report.pid
        assert await (await process.start(name="f", **order)).wait() == 4

    async def test_a_forkserver_that_is_frozen_for_a_moment_forks_when_it_continues(self, news):
        report = await warm()
        os.kill(report.pid, signal.SIGSTOP)
        start = asyncio.create_task(
            process.start(name="c", target="process_targets:nap", payload=news.address)
        )
        done, _ = await asyncio.wait({start}, timeout=0.5)
        assert not done
        os.kill(report.pid, signal.SIGCONT)
        child = await start
        await news()
        child.signal(signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        assert (await warm()).pid == report.pid

    async def test_data_that_a_child_did_not_read_is_no_fault_of_its_forkserver(self):
        report = await warm()

        def child_is_dead():
            raise BrokenPipeError

        with pytest.raises(ProcessError, match="no child came of it: BrokenPipeError") as caught:
            await forkserver._server.fork(child_is_dead)
        assert not isinstance(caught.value, ForkserverDied)
        assert (await warm()).pid == report.pid

    async def test_a_fork_that_waits_for_others_is_not_silence(self):
        report = await warm()
        orders = [forkserver._server.fork(lambda: time.sleep(1.0)) for _ in range(7)]
        await asyncio.gather(*orders)
        assert (await warm()).pid == report.pid

    async def test_a_forkserver_that_dies_before_it_forks_is_not_replaced_by_multiprocessing(self):
        report = await warm()
        server = forkserver._server
        os.kill(report.pid, signal.SIGKILL)
        await server._wait_for_exit()
        with pytest.raises(ForkserverDied):
            await server.fork(lambda: multiprocessing.forkserver.connect_to_new_process([]))
        with pytest.raises(OSError, match="refused"):
            multiprocessing.forkserver.connect_to_new_process([])
        assert (await warm()).pid != report.pid


class TestWarmUp:
    def test_the_socket_is_where_it_was_asked_for(self, tmp_path):
        code = (
            "import asyncio, pathlib, sys; from governor.processes import process\n"
            "process.warm_up(preload=False, folder=pathlib.Path(sys.argv[1])); asyncio.run(process.warm())\n"
            "print(*pathlib.Path(sys.argv[1]).glob('pymp-*/listener-*'))"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
        )
        assert ran.stdout.startswith(str(tmp_path).encode())
        assert list(tmp_path.iterdir()) == []  # an orderly end leaves nothing

    async def test_it_returns_before_the_modules_are_loaded(self):
        process.shut_down()
        begin = time.perf_counter()
        process.warm_up(preload=("numpy", "gymnasium"))
        assert time.perf_counter() - begin < 0.2
        assert forkserver._server.failures is None
        first, second = await asyncio.gather(process.warm(), process.warm())
        assert first is second
        assert first.failures == {}

    async def test_a_forkserver_that_dies_while_it_loads_is_an_error(self, tmp_path, monkeypatch):
        (tmp_path / "fatal_module.py").write_text("import os; os._exit(3)")
        monkeypatch.syspath_prepend(str(tmp_path))
        process.shut_down()
        process.warm_up(preload=("fatal_module",))
        with pytest.raises(ProcessError, match="died while it loaded"):
            await process.warm()
        process.warm_up(preload=False)
        assert await process.warm()

    async def test_ctrl_c_while_it_starts_does_not_reach_it(self):
        process.shut_down()
        process.warm_up(preload=False)
        os.kill(forkserver._server.pid, signal.SIGINT)  # as a terminal sends it
        assert await process.warm()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    async def test_one_that_hangs_is_an_error_after_the_deadline(self, tmp_path, monkeypatch):
        (tmp_path / "hanging_module.py").write_text("import threading; threading.Event().wait()")
        monkeypatch.syspath_prepend(str(tmp_path))
        process.shut_down()
        process.warm_up(preload=("hanging_module",))
        with pytest.raises(ForkserverDied, match="was killed: not ready within") as caught:
            await process.warm(timeout=0.3)
        assert not lives(caught.value.pid)
        process.warm_up(preload=False)
        assert await process.warm()

    async def test_a_fork_is_not_silent_while_it_imports_ray(self, tmp_path, monkeypatch):
        monkeypatch.setattr(forkserver, "FORK_SECONDS", 3.0)
        importing = tmp_path / "importing"
        os.mkfifo(importing)
        (tmp_path / "ray_of_a_cold_disk.py").write_text(
            f"import time; open({str(importing)!r}, 'w').close(); time.sleep(4.5)"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        process.shut_down()
        process.warm_up(preload=False, ray=("ray_of_a_cold_disk",))
        server = await process.warm()
        server.load_ray()
        await asyncio.to_thread(importing.read_text)
        child = await process._spawn(
            server,
            "c",
            ("process_targets:leave", b"4", None),
            {"mark": process._new_mark(), "starts_processes": False},
        )
        assert await child.wait() == 4
        assert (await process.warm(ray=True)) is server

    async def test_the_pid_of_a_child_is_known_before_ray_is_imported(self, tmp_path, monkeypatch):
        imported = tmp_path / "imported"
        (tmp_path / "ray_that_tells.py").write_text(f"open({str(imported)!r}, 'w').close()")
        monkeypatch.syspath_prepend(str(tmp_path))
        process.shut_down()
        process.warm_up(preload=False, ray=("ray_that_tells",))
        server = await process.warm()
        begun, may_end = threading.Event(), threading.Event()

        def order():
            begun.set()
            assert may_end.wait(30)

        forking = asyncio.create_task(server.fork(order))
        await asyncio.to_thread(begun.wait, 30)
        server.load_ray()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(server._loading), 0.5)
        assert not imported.exists()
        may_end.set()
        await forking
        assert (await process.warm(ray=True)) is server
        assert imported.exists()

    async def test_an_import_of_ray_that_hangs_is_ended_also_when_nobody_waits_for_it(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(forkserver, "WARM_SECONDS", 0.3)
        (tmp_path / "hanging_ray.py").write_text("import threading; threading.Event().wait()")
        monkeypatch.syspath_prepend(str(tmp_path))
        process.shut_down()
        process.warm_up(preload=False, ray=("hanging_ray",))
        server = await process.warm(timeout=10)
        server.load_ray()
        async with asyncio.timeout(10):
            await server._loading
        assert server.dead
        process.warm_up(preload=False)
        assert await process.warm(timeout=10)

    async def test_other_processes_cannot_report(self):
        process.shut_down()
        process.warm_up(preload=False)
        address = forkserver._server._receiver.getsockname()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for message in (b"", b"{}", b"[]", b"\xff", b'{"secret": "x", "pid": 1}'):
                sender.sendto(message, address)
        report = await process.warm()
        assert report.pid == forkserver._server.pid

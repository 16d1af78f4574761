from __future__ import annotations

import asyncio
import errno
import inspect
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import aiomultiprocess.core
import psutil
import pytest

from governor.errors import ProcessError
from governor.processes import process
from governor.processes.child import give_up_protection
from governor.processes.identity import ProcessIdentity, boot_id
from governor.processes.readiness import is_readable
from tests.governor.processes.conftest import start
from tests.support.living import open_fds

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
pytestmark = pytest.mark.usefixtures("shut_down", "targets")


def pipes_of(pid: int) -> set[str]:
    names = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return {name for name in names if name.startswith("pipe:")}


async def warm():
    process.warm_up(preload=False)
    return await process.warm()


class TestExit:
    @pytest.mark.parametrize(
        ("target", "payload", "code"),
        [
            ("leave", b"0", 0),
            ("leave", b"7", 7),
            ("leave", b"255", 255),
            ("leave_by_exit", b"9", 9),
            ("leave_with_hung_thread", b"", 5),
            ("fail", b"", 70),
            ("no_such_function", b"", 70),
        ],
    )
    async def test_the_exit_code_is_what_the_target_returned(self, target, payload, code):
        child = await start(target, payload)
        async with asyncio.timeout(10):
            assert await child.wait() == code
        assert child.exit_code == code

    async def test_a_module_that_is_not_there_is_internal(self):
        child = await process.start(name="c", target="no_such_module:main", payload=b"")
        assert await child.wait() == 70

    async def test_a_signal_is_a_negative_code(self, news):
        child = await start("nap", news.address)
        await news()
        assert child.exit_code is None
        assert child.signal(signal.SIGTERM)
        assert await child.wait() == -signal.SIGTERM
        assert not child.signal(signal.SIGTERM)

    async def test_a_signal_right_after_the_start_is_not_lost(self):
        children = [await start("nap_in_silence", b"", name=f"c{i}") for i in range(10)]
        for child in children:
            child.signal(signal.SIGKILL)
        assert [await child.wait() for child in children] == [-signal.SIGKILL] * 10

    async def test_all_waiters_get_the_exit_code(self, news):
        child = await start("nap", news.address)
        waiters = [asyncio.create_task(child.wait()) for _ in range(5)]
        waiters[0].cancel()
        await news()
        child.signal(signal.SIGKILL)
        codes = await asyncio.gather(*waiters, return_exceptions=True)
        assert isinstance(codes[0], asyncio.CancelledError)
        assert codes[1:] == [-signal.SIGKILL] * 4

    async def test_no_other_start_reads_an_exit(self):
        child = await start("leave", b"3")
        # A start polls those, in a thread.
        assert child._process.aio_process not in multiprocessing.process._children
        other = await start("leave", b"4", name="d")
        assert (await child.wait(), await other.wait()) == (3, 4)

    async def test_the_rest_of_the_group_goes_with_its_leader(self, news):
        child = await start("start_descendants", news.address)
        found = await news()
        inside = os.pidfd_open(found["descendants"][0])
        os.kill(child.pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL
        assert is_readable(inside, timeout=5)
        os.close(inside)
        _, *outside = found["descendants"]  # of the group: the kill ladder's and the guard's to find
        for pid in outside:
            os.kill(pid, signal.SIGKILL)

    async def test_nothing_polls(self, news, monkeypatch):
        child = await start("nap", news.address)
        await news()
        asked = 0
        collect = child._collect

        def count() -> None:
            nonlocal asked
            asked += 1
            collect()

        monkeypatch.setattr(child, "_collect", count)
        waiter = asyncio.create_task(child.wait())
        done, _ = await asyncio.wait({waiter}, timeout=0.2)
        assert not done
        child.signal(signal.SIGKILL)
        await waiter
        assert asked < 6


class TestChild:
    async def test_it_leads_a_group_of_its_own_below_the_forkserver(self, news):
        report = await warm()
        child = await start("answer", news.address, name="environment.lake")
        found = await news()
        assert found["pid"] == found["pgid"] == child.pid
        assert found["ppid"] == report.pid
        assert found["comm"] == "environment.lake"[:15]
        assert child.identity == ProcessIdentity(pid=child.pid, ticks=found["ticks"], boot=boot_id())
        await child.wait()

    @pytest.mark.parametrize(("inherited", "own"), [("-500", "0"), ("0", "0"), ("300", "300")])
    def test_the_kernel_spares_the_daemon_for_lack_of_memory_and_not_its_children(
        self, tmp_path, inherited, own
    ):
        file = tmp_path / "oom_score_adj"
        file.write_text(f"{inherited}\n")
        give_up_protection(file)
        assert file.read_text().strip() == own

    async def test_it_ignores_ctrl_c_alone(self, news):
        child = await start("answer", news.address)
        found = await news()
        assert set(found["ignored"]) == {signal.SIGINT, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ}
        await child.wait()

    async def test_no_descriptor_of_the_daemon_leaks_into_it(self, news, tmp_path):
        kept = (tmp_path / "secret").open("w")
        os.set_inheritable(kept.fileno(), True)
        process.shut_down()
        other = await start("nap", news.address, name="first")
        await news()
        child = await start("answer", news.address)
        found = await news()
        kept.close()
        opened = set(found["fds"].values())
        assert not any("secret" in name for name in opened)
        others = pipes_of(other.pid)
        # The two life lines are shared by design: forkserver's and resource tracker's, and the standard streams.
        streams = {found["fds"].get(str(fd)) for fd in range(3)}
        assert len((others & opened) - streams) <= 2
        other.signal(signal.SIGKILL)
        await asyncio.gather(child.wait(), other.wait())

    async def test_it_finds_the_daemons_import_path_and_a_clean_environment(self, news, monkeypatch):
        process.shut_down()
        monkeypatch.setenv("PYTHONPATH", "/one:/two")
        child = await start("answer", news.address)
        found = await news()
        assert found["environ"]["PYTHONPATH"] == "/one:/two"
        assert "PYTHONSAFEPATH" not in found["environ"]
        assert "GOVERNOR_FORKSERVER" not in found["environ"]
        assert "GOVERNOR_FORKSERVER" not in os.environ
        assert found["path"][0] == str(HERE)
        await child.wait()

    async def test_it_leaves_nothing_open_in_the_daemon(self):
        await (await start("leave", b"0")).wait()
        before = open_fds()
        for _ in range(5):
            await (await start("leave", b"0")).wait()
        assert set(open_fds()) <= set(before)
        assert not process._children


class TestStart:
    async def test_from_the_main_thread_only(self):
        with pytest.raises(ProcessError, match="main thread only"):
            await asyncio.to_thread(lambda: asyncio.run(start("leave", b"0")))
        with pytest.raises(ProcessError, match="main thread only"):
            await asyncio.to_thread(process.warm_up)

    @pytest.mark.parametrize(("target", "code"), [("nap", -signal.SIGKILL), ("obey", 0)])
    async def test_an_exit_code_is_read_from_the_zombie_of_a_frozen_forkserver(self, news, target, code):
        report = await warm()
        child = await start(target, news.address)
        await news()
        os.kill(report.pid, signal.SIGSTOP)
        try:
            child.signal(signal.SIGKILL if code else signal.SIGTERM)
            async with asyncio.timeout(5):
                assert await child.wait() == code
        finally:
            os.kill(report.pid, signal.SIGCONT)
        assert await (await start("leave", b"4", name="d")).wait() == 4

    async def test_a_start_that_is_cancelled_leaves_no_child(self, news):
        report = await warm()
        os.kill(report.pid, signal.SIGSTOP)
        starting = asyncio.create_task(start("defy", news.address))
        await asyncio.wait({starting}, timeout=0.1)
        starting.cancel()
        done, _ = await asyncio.wait({starting}, timeout=0.1)
        assert not done, "it can't know yet that nothing will be born"
        os.kill(report.pid, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert psutil.Process(report.pid).children() == []
        assert not process._children

    async def test_a_start_that_is_cancelled_while_modules_load_is_over_at_once(self, tmp_path, monkeypatch):
        (tmp_path / "hanging_module.py").write_text("import threading; threading.Event().wait()")
        monkeypatch.syspath_prepend(str(tmp_path))
        process.shut_down()
        process.warm_up(preload=("hanging_module",))
        starting = asyncio.create_task(start("leave", b"0"))
        await asyncio.wait({starting}, timeout=0.1)
        starting.cancel()
        done, _ = await asyncio.wait({starting}, timeout=1)
        process.shut_down()
        process.warm_up(preload=False)
        assert done

    async def test_a_child_that_can_not_be_watched_is_not_left_alive(self, news, monkeypatch):
        report = await warm()

        def no_descriptor_left(pid):
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(process.os, "pidfd_open", no_descriptor_left)
        with pytest.raises(ProcessError, match=r"cannot watch c: OSError: .* Too many open files"):
            await start("defy", news.address)
        monkeypatch.undo()
        for child in psutil.Process(report.pid).children():
            assert is_readable(os.pidfd_open(child.pid), timeout=5)

    async def test_a_daemon_whose_own_folder_has_been_removed_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # and back
        folder = tmp_path / "gone"
        folder.mkdir()
        os.chdir(folder)
        folder.rmdir()
        assert await (await start("leave", b"3")).wait() == 3

    async def test_a_real_255_is_no_dead_forkserver(self):
        assert await (await start("leave", b"255")).wait() == 255

    async def test_no_manager_is_started(self):
        await (await start("leave", b"0")).wait()
        # The private name that our stand-in is put under: if aiomultiprocess renames it, this fails.
        source = inspect.getsource(aiomultiprocess.core.get_manager)
        assert "global _manager\n    if _manager is None:\n        _manager = context.Manager()" in source
        assert aiomultiprocess.core.get_manager() is aiomultiprocess.core._manager
        assert not isinstance(
            aiomultiprocess.core.get_manager(), aiomultiprocess.core.multiprocessing.managers.BaseManager
        )
        names = [child.cmdline() for child in psutil.Process().children()]
        helpers = [line for line in names if "multiprocessing" in " ".join(line)]
        assert len(helpers) == 2, helpers  # the forkserver and the resource tracker

    async def test_a_large_payload_arrives(self):
        child = await start("leave", b" " * 3_000_000 + b"6")
        assert await child.wait() == 6

    async def test_a_warm_start_takes_less_than_that_of_a_bare_python(self):
        """5 to 7 ms on a quiet machine, against 15."""
        await warm()
        seconds, bare = [], []
        for _ in range(10):
            begin = time.perf_counter()
            child = await start("leave", b"0")
            await child.wait()
            seconds.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            await (await asyncio.create_subprocess_exec(sys.executable, "-c", "import json")).wait()
            bare.append(time.perf_counter() - begin)
        assert sorted(seconds)[5] < sorted(bare)[5]


def test_is_readable_waits_for_an_event_from_another_thread():
    reader, writer = os.pipe()
    threading.Timer(0.05, os.close, (writer,)).start()
    assert not is_readable(reader)
    assert is_readable(reader, timeout=5)
    os.close(reader)

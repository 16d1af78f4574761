"""A daemon that dies takes its forkserver and its children along."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from governor.processes.readiness import is_readable
from tests.support.living import lives

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
pytestmark = pytest.mark.usefixtures("shut_down", "targets")


DAEMON = """
import asyncio, json, os, sys
MARK = True
sys.path[:0] = [{here!r}]
from governor.processes import process
async def main():
    process.warm_up(preload=json.loads(sys.argv[2]))
    report = await process.warm()
    children = [await process.start(name=f"c{{i}}", target="process_targets:" + sys.argv[1], payload=sys.argv[3].encode()) for i in range(2)]
    maps = open("/proc/self/maps").read()
    print(json.dumps(dict(forkserver=report.pid, children=[c.pid for c in children], ray="_raylet" in maps,
          failures=report.failures, numpy="numpy" in sys.modules)), flush=True)
    if len(sys.argv) > 4:
        return
    await asyncio.Event().wait()
if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def daemon(tmp_path):
    """Starts a daemon in a process of its own: `daemon(target, preload, address)` -> (Popen, what it printed)."""
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON.format(here=str(HERE)))
    folder = tempfile.TemporaryDirectory()  # the forkserver's socket stays behind when its daemon is killed
    started = []

    def start(*arguments: str):
        popen = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder.name},
        )
        started.append(popen)
        return popen, json.loads(popen.stdout.readline())

    yield start
    for popen in started:
        popen.kill()
        popen.wait()
        popen.stdout.close()
    folder.cleanup()


class TestDaemonsDeath:
    @pytest.mark.parametrize("target", ["nap", "defy"])
    async def test_kill_9_of_the_daemon_takes_forkserver_and_children_along(self, daemon, news, target):
        popen, printed = daemon(target, "false", news.address.decode())
        await news()
        await news()
        helpers = psutil.Process(popen.pid).children(recursive=True)
        assert {printed["forkserver"], *printed["children"]} < {helper.pid for helper in helpers}
        pidfds = [os.pidfd_open(helper.pid) for helper in helpers]  # the resource tracker's too
        popen.kill()
        begin = time.monotonic()
        for pidfd in pidfds:
            assert is_readable(pidfd, timeout=5)
            os.close(pidfd)
        assert time.monotonic() - begin < 2

    def test_also_while_the_modules_are_loading(self, tmp_path):
        (tmp_path / "hanging_module.py").write_text(
            "import os, threading, process_targets\n"
            f"process_targets.send_report({str(tmp_path / 'up')!r}, os.getpid())\n"
            "threading.Event().wait()\n"
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        ):
            receiver.bind(str(tmp_path / "up"))
            code = (
                f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(HERE)!r}]\n"
                "from governor.processes import process\n"
                "process.warm_up(preload=('hanging_module',)); sys.stdin.read()"
            )
            popen = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder},
                stdin=subprocess.PIPE,
            )
            receiver.settimeout(10)
            pidfd = os.pidfd_open(json.loads(receiver.recv(100)))
        popen.kill()
        popen.wait()
        popen.stdin.close()
        assert is_readable(pidfd, timeout=5)
        os.close(pidfd)

    async def test_a_daemon_that_ends_with_children_alive_does_not_hang(self, daemon, news):
        popen, printed = daemon("defy", "false", news.address.decode(), "end")
        assert popen.wait(timeout=5) == 0
        for pid in printed["children"]:
            assert not lives(pid)

    async def test_children_run_no_main_module_again(self, daemon, news):
        daemon("answer", "false", news.address.decode())
        reported = await news()
        assert reported["main"] == {"name": "__main__", "mark": False}

    @pytest.mark.ray
    async def test_ray_is_warm_in_the_children_and_not_in_the_daemon(self, daemon, news):
        _, printed = daemon("answer", '["numpy", "governor.tasks.runners.pool"]', news.address.decode())
        reported = await news()
        assert printed["failures"] == {}
        assert "ray" in reported["modules"]
        assert not printed["ray"]
        assert not printed["numpy"]

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from governor.processes import preload, process
from governor.processes.preload import Order
from governor.processes.readiness import is_readable, readable

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="module", autouse=True)
def shut_down():
    process.shut_down()
    yield
    process.shut_down()


@pytest.fixture
def receiver(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind(str(tmp_path / "news"))
        yield receiver


async def test_a_module_that_fails_is_reported_and_the_others_are_loaded(tmp_path, monkeypatch, receiver):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_module.py").write_text("1 / 0")
    process.shut_down()
    process.warm_up(preload=("no_such_module", "broken_module", "colorsys"))
    assert (await process.warm()).failures == {
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
        "broken_module": "ZeroDivisionError: division by zero",
    }
    child = await process.start(
        name="c", target="process_targets:answer", payload=str(tmp_path / "news").encode()
    )
    await readable(receiver.fileno())
    assert "colorsys" in json.loads(receiver.recv(1 << 20))["modules"]
    assert await child.wait() == 0


@pytest.mark.ray
async def test_everything_that_children_need_loads():
    process.shut_down()
    process.warm_up()
    assert (await process.warm(ray=True)).failures == {}


@pytest.fixture
def loaded(tmp_path, monkeypatch, receiver):
    """Which modules a child has that was started so."""
    monkeypatch.syspath_prepend(str(HERE))

    async def loaded(**how):
        address = str(tmp_path / "news").encode()
        child = await process.start(name="c", target="process_targets:answer", payload=address, **how)
        await readable(receiver.fileno())
        assert await child.wait() == 0
        return json.loads(receiver.recv(1 << 20))["modules"]

    return loaded


async def test_modules_for_ray_are_imported_once_a_child_needs_them_and_then_all_have_them(tmp_path, loaded):
    (tmp_path / "slow_module.py").write_text("import os, time; print('loading'); time.sleep(0.5)")
    sys.path.insert(0, str(tmp_path))
    try:
        process.shut_down()
        process.warm_up(preload=("colorsys",), ray=("no_such_module", "slow_module"))
        server = await process.warm()
        assert "slow_module" not in await loaded()
        with capture_logs() as logs:
            first, second = await asyncio.gather(process.warm(ray=True), process.warm(ray=True))
            assert server is first is second
            assert "slow_module" in await loaded(ray=True)
            assert "slow_module" in await loaded()
        assert list(server.failures) == ["no_such_module"]
        told = {line["event"]: line for line in logs}
        assert list(told["forkserver.not_preloaded"]["failures"]) == ["no_such_module"]
        assert told["forkserver.log"]["text"] == "loading"
    finally:
        sys.path.remove(str(tmp_path))


async def test_the_signal_that_has_it_load_ends_a_child_as_ever(tmp_path, monkeypatch, receiver):
    monkeypatch.syspath_prepend(str(HERE))
    address = str(tmp_path / "news").encode()
    child = await process.start(name="c", target="process_targets:nap", payload=address)
    await readable(receiver.fileno())
    child.signal(preload.LOAD_SIGNAL)
    assert await child.wait() == -preload.LOAD_SIGNAL


def test_the_import_does_nothing_without_an_order():
    code = (
        "import signal, sys; before = len(sys.path)\n"
        "from governor.processes import preload\n"
        "assert preload._forkserver == 0\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert 'numpy' not in sys.modules and len(sys.path) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_forkserver_whose_daemon_is_gone_before_it_began_ends_at_once():
    order = Order(
        daemon=1 if os.getpid() != 1 else 2,
        address="nobody",
        secret="s",
        modules=("json",),
        sys_path=tuple(sys.path),
        environ={},
        main_name=None,
        main_path=None,
    )
    ended = subprocess.run(
        [sys.executable, "-c", "import governor.processes.preload; print('lives on')"],
        env={**os.environ, "PYTHONPATH": str(ROOT), preload.ORDER_VARIABLE: order.dump()},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""


def test_signals_that_an_ancestor_ignored_or_blocked_are_as_new_in_children(tmp_path, receiver):
    code = (
        "import asyncio, signal, sys\n"
        f"sys.path[:0] = [{str(HERE)!r}]\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})\n"
        "from governor.processes import process\n"
        "process.warm_up(preload=False)\n"
        "async def main():\n"
        "    child = await process.start(name='c', target='process_targets:nap', payload=sys.argv[1].encode())\n"
        "    sys.stdin.read(1)\n"
        "    child.signal(signal.SIGTERM)\n"
        "    print(await child.wait())\n"
        "asyncio.run(main())\n"
    )
    popen = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "news")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert is_readable(receiver.fileno(), timeout=10)
    out, _ = popen.communicate(b"x", timeout=10)
    assert out.strip() == b"-15"


async def test_a_fork_of_a_conductors_own_stays_in_its_group(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "forking.py").write_text(
        "import os\n"
        "async def main(payload):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os._exit(0 if os.getpgrp() == os.getppid() else 1)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
    )
    assert await (await process.start(name="c", target="forking:main", payload=b"")).wait() == 0


@pytest.mark.parametrize(
    "datagram", [b"\xff", b"7", b"{}", b'{"secret": "s"}', b'{"secret": "t", "failures": {}}']
)
def test_a_datagram_of_another_process_is_no_report(datagram):
    assert preload.read_report(b'{"secret": "s", "failures": {"c": "E: x"}}', "s") == {"c": "E: x"}
    assert preload.read_report(datagram, "s") is None

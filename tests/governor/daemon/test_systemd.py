from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

from governor.daemon.systemd import STOP_SECONDS, SystemdNotifier
from governor.errors import ExitCode
from tests.support.living import open_fds

SERVICE = Path(__file__).parents[3] / "governor/cli/service/files"


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path):
    """The service manager's end of NOTIFY_SOCKET: (the socket, the variable's value)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(5)
        if request.param == "file":
            receiver.bind(str(tmp_path / "notify"))
            yield receiver, str(tmp_path / "notify")
        else:
            receiver.bind("")
            yield receiver, "@" + receiver.getsockname()[1:].decode()


def test_what_the_manager_receives(manager):
    receiver, address = manager
    notifier = SystemdNotifier.from_environ({"NOTIFY_SOCKET": address})
    said = [
        notifier.ready("2 slots"),
        notifier.status("running\nREADY=1  a"),
        notifier.watchdog(),
        notifier.stopping("bye", grace=60),
        notifier.ready(),
    ]
    assert said == [True] * 5
    assert [receiver.recv(4096) for _ in said] == [
        b"READY=1\nSTATUS=2 slots",
        b"STATUS=running READY=1 a",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=bye\nEXTEND_TIMEOUT_USEC=85000000",
        b"READY=1",
    ]
    assert notifier.reloading()
    first, second = receiver.recv(4096).split(b"\n")
    assert first == b"RELOADING=1"
    assert second.startswith(b"MONOTONIC_USEC=")
    assert int(second.partition(b"=")[2]) > 0


def test_the_variables_are_taken_out_of_the_environment(monkeypatch):
    names = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"]
    for name in names:
        monkeypatch.setenv(name, "1")
    SystemdNotifier.from_environ()
    assert not set(names) & set(os.environ)


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_due_twice_in_the_managers_time(environ, interval):
    assert SystemdNotifier.from_environ({"NOTIFY_SOCKET": "/x", **environ}).watchdog_interval == interval


def test_without_a_socket_nothing_is_sent_and_no_watchdog_is_due():
    notifier = SystemdNotifier.from_environ({"WATCHDOG_USEC": "30000000"})
    assert notifier.watchdog_interval is None
    assert not notifier.ready("x")
    assert not notifier.watchdog()


def test_a_manager_that_is_gone_or_deaf_stops_nothing(tmp_path):
    assert not SystemdNotifier(address=str(tmp_path / "nobody")).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        notifier = SystemdNotifier(address=str(tmp_path / "deaf"))
        assert not all(
            notifier.watchdog() for _ in range(10_000)
        )  # its queue is full: refused, not waited for


def test_sending_leaves_no_descriptor_open(manager):
    receiver, address = manager
    notifier = SystemdNotifier(address=address)
    before = open_fds()
    for _ in range(5):
        notifier.watchdog()
        receiver.recv(100)
    assert set(open_fds()) <= set(before)


@pytest.fixture
def unit(tmp_path):
    text = (SERVICE / "run-governor.service").read_text()
    made = tmp_path / "run-governor.service"
    made.write_text(
        text.replace("{bin}", str(Path(sys.executable).parent)).replace("{config}", "/etc/governor.toml")
    )
    return made


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_clean_under_systemd_analyze_verify(unit):
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr, verified.stdout) == (0, "", "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_sandbox_leaves_little_open(unit):
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=35", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_unit_fits_the_daemon():
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(SERVICE / "run-governor.service")
    service = unit["Service"]
    settings = tomllib.loads((SERVICE / "governor.toml").read_text())
    assert float(service["TimeoutStopSec"]) >= settings["stop_grace"] + STOP_SECONDS
    final = {ExitCode.USAGE, ExitCode.NOT_PERMITTED, ExitCode.BAD_CONFIGURATION}
    assert set(map(int, service["RestartPreventExitStatus"].split())) == final
    assert service["StateDirectoryMode"] == service["RuntimeDirectoryMode"] == "0700"
    assert "MemoryDenyWriteExecute" not in service
    assert service["Delegate"] == "yes"
    assert "ProtectControlGroups" not in service, "it would make the delegated cgroup read-only"

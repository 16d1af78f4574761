from __future__ import annotations

import json
import os
import pty
import secrets
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from governor.processes import guard
from governor.processes.readiness import is_readable

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def environ(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in {"NOTIFY_SOCKET", "SYSTEMD_EXEC_PID"}}
    return {**clean, "PYTHONPATH": str(ROOT), **more}


class Tree:
    """A guard, its second guard, its daemon and their descendants, watched through pidfds: a pidfd is readable when its process is dead."""

    def __init__(self, mode: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, str(HERE / "guard_daemon.py"), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ(),
            start_new_session=True,
        )
        self.known = json.loads(self.popen.stdout.readline())
        self.pidfds = []
        for pid in [self.known["daemon"], *self.known["descendants"], self.known["guard2"]]:
            try:
                self.pidfds.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue  # dead and reaped

    def line(self) -> str:
        return self.popen.stdout.readline().strip()

    def quiet(self) -> bool:
        return not is_readable(self.popen.stdout.fileno(), timeout=0.1)

    def all_dead(self, timeout: float = 0) -> bool:
        deadline = time.monotonic() + timeout
        return all(is_readable(fd, timeout=max(0, deadline - time.monotonic())) for fd in self.pidfds)

    def close(self) -> None:
        for fd in self.pidfds:
            if not is_readable(fd):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        self.popen.kill()
        self.popen.wait()
        self.popen.stdout.close()


@pytest.fixture
def tree():
    trees = []

    def start(mode: str) -> Tree:
        trees.append(Tree(mode))
        return trees[-1]

    yield start
    for each in trees:
        each.close()


@pytest.mark.parametrize(
    ("environment", "needed"),
    [
        ({}, True),
        ({"NOTIFY_SOCKET": "/run/systemd/notify"}, False),
        ({"NOTIFY_SOCKET": ""}, True),
        ({"SYSTEMD_EXEC_PID": "77"}, False),
        ({"SYSTEMD_EXEC_PID": "76", "INVOCATION_ID": "x"}, True),  # a shell below some unit
        ({"INVOCATION_ID": "x"}, True),
    ],
)
def test_which_processes_need_a_guard(environment, needed):
    assert guard.needs_guard(environment, pid=77) is needed


class TestEnds:
    @pytest.mark.parametrize(("mode", "code"), [("exit", 3), ("raise", 1), ("kill", 137)])
    def test_the_exit_code_is_the_daemons_and_nothing_is_left(self, tree, mode, code):
        it = tree(mode)
        assert it.popen.wait(timeout=10) == code
        assert it.all_dead()

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139)])
    def test_a_daemon_that_is_killed_leaves_nothing(self, tree, number, code):
        it = tree("stop")
        os.kill(it.known["daemon"], number)
        assert it.popen.wait(timeout=10) == code
        assert it.all_dead()

    def test_term_is_the_daemons_to_answer(self, tree):
        it = tree("stop")
        it.popen.terminate()
        assert it.line() == "SIGTERM"
        assert it.popen.wait(timeout=10) == 0
        assert it.all_dead()

    @pytest.mark.parametrize("victim", ["guard", "guard2", "daemon"])
    def test_kill_9_of_any_of_the_three_leaves_nothing(self, tree, victim):
        """Grandchildren in sessions of their own, and an orphan, among them."""
        it = tree("serve")
        os.kill(it.known[victim], signal.SIGKILL)
        assert it.all_dead(timeout=3)
        assert it.popen.wait(timeout=3) == (-9 if victim == "guard" else 137)

    @pytest.mark.parametrize("stopped", ["guard2", "daemon"])
    def test_kill_9_of_the_guard_leaves_nothing_of_those_that_stand_still(self, tree, stopped):
        it = tree("serve")
        os.kill(it.known[stopped], signal.SIGSTOP)
        assert stops(
            it.known[stopped]
        )  # the kernel wakes what stands still when its guard dies, not what is about to
        it.popen.kill()
        assert it.all_dead(timeout=3)

    def test_kill_9_of_the_guard_after_ctrl_z_leaves_nothing(self, tree):
        it = tree("serve")
        it.popen.send_signal(signal.SIGTSTP)
        assert stops(it.popen.pid)
        it.popen.kill()
        assert it.all_dead(timeout=3)

    def test_a_stopped_daemon_can_be_killed(self, tree):
        it = tree("stop")
        os.kill(it.known["daemon"], signal.SIGSTOP)
        os.kill(it.known["daemon"], signal.SIGKILL)
        assert it.popen.wait(timeout=10) == 137
        assert it.all_dead()

    def test_many_forking_processes_are_swept(self):
        """Processes that fork as fast as they are killed do not escape."""
        code = (
            "import os, sys; from governor.processes.guard import start_guard; start_guard()\n"
            "for _ in range(5):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        for _ in range(40):\n"
            "            if os.fork():\n"
            "                import time; time.sleep(0.002)\n"
            "                os._exit(0)\n"
            "        import signal; signal.pause()\n"
        )
        mark = secrets.token_hex(8)
        popen = subprocess.Popen(
            [sys.executable, "-c", code], env=environ(GUARD_CROWD=mark), start_new_session=True
        )
        assert popen.wait(timeout=20) == 0
        left = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    if mark.encode() in (folder / "environ").read_bytes():
                        left.append(folder.name)
                except OSError:
                    continue
        assert left == []


class TestSignals:
    @pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"])
    def test_each_reaches_the_daemon_once(self, tree, name):
        it = tree("serve")
        it.popen.send_signal(signal.Signals[name])
        assert it.line() == name
        assert it.quiet()

    def test_a_signal_to_the_group_reaches_the_daemon_once(self, tree):
        it = tree("serve")
        assert it.known["group"] == it.known["daemon"]
        os.killpg(os.getpgid(it.popen.pid), signal.SIGTERM)
        assert it.line() == "SIGTERM"
        assert it.quiet()

    def test_orphans_are_reaped_while_the_daemon_works(self, tree):
        it = tree("serve")
        orphan = it.known["descendants"][3]
        stat = Path(f"/proc/{orphan}/stat").read_text()
        assert int(stat.rpartition(")")[2].split()[1]) == it.known["guard2"]
        os.kill(orphan, signal.SIGKILL)
        assert is_readable(it.pidfds[4], timeout=5)
        it.popen.send_signal(signal.SIGUSR1)
        assert it.line() == "SIGUSR1"
        it.popen.send_signal(signal.SIGHUP)
        assert it.line() == "SIGHUP"  # one round of the second guard after the orphan's death is over
        assert not Path(f"/proc/{orphan}").exists()


class Terminal:
    """A shell's job control in a real pty: an interactive sh that runs the guard in the foreground."""

    def __init__(self, mode: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environ(PS1="", PS2="", TERM="dumb"))
        attributes = termios.tcgetattr(self.fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.fd, termios.TCSANOW, attributes)
        self.seen = ""
        self.type(f"{sys.executable} {HERE / 'guard_daemon.py'} {mode}; echo code $?=\n")
        self.known = json.loads(next(line for line in self.until("]}").splitlines() if line.startswith("{")))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str, timeout: float = 10) -> str:
        """What came up to and with `text`."""
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            if not select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{text!r} did not come; there is {self.seen!r}")
            self.seen += os.read(self.fd, 65536).decode().replace("\r\n", "\n")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def quiet(self) -> bool:
        return not select.select([self.fd], [], [], 0.1)[0]

    def close(self) -> None:
        known = self.known
        for pid in (known["daemon"], *known["descendants"], known["guard2"], known["guard"], self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal():
    terminals = []

    def start(mode: str) -> Terminal:
        terminals.append(Terminal(mode))
        return terminals[-1]

    yield start
    for each in terminals:
        each.close()


def stops(pid: int, timeout: float = 5) -> bool:
    """Whether a process gets into state T; its stop is an event for its parent alone, so we look again and again."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.005)
    return False


class TestTerminal:
    def test_ctrl_c_reaches_the_daemon_once(self, terminal):
        it = terminal("serve")
        it.type("\x03")
        it.until("SIGINT")
        assert "SIGINT" not in it.seen
        assert it.quiet()
        it.type("\x03")
        it.until("SIGINT")

    def test_ctrl_c_ends_a_daemon_that_obeys_with_its_code(self, terminal):
        it = terminal("stop")
        it.type("\x03")
        it.until("SIGINT")
        it.until("code 130=")
        for pid in it.known["descendants"]:
            assert not Path(f"/proc/{pid}").exists()

    def test_ctrl_z_stops_both_and_fg_wakes_both(self, terminal):
        it = terminal("serve")
        it.type("\x1a")
        it.until("Stopped")
        assert stops(it.known["guard"])
        it.type("\n")
        assert stops(it.known["daemon"])
        it.type("fg\n")
        os.kill(it.known["guard"], signal.SIGUSR1)
        it.until("SIGUSR1")
        it.type("\x03")
        it.until("SIGINT")

    def test_the_daemon_writes_also_under_tostop_and_cannot_be_stopped_by_reading(self, terminal):
        it = terminal("serve")
        attributes = termios.tcgetattr(it.fd)
        attributes[3] |= termios.TOSTOP
        termios.tcsetattr(it.fd, termios.TCSANOW, attributes)
        os.kill(it.known["guard"], signal.SIGHUP)
        it.until("SIGHUP")

    def test_a_resized_window_is_forwarded(self, terminal):
        it = terminal("serve")
        termios.tcsetwinsize(it.fd, (33, 77))
        it.until("SIGWINCH")


def test_threads_that_exist_already_are_an_error(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("SYSTEMD_EXEC_PID", raising=False)
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match="before any thread"):
            guard.start_guard()
    finally:
        release.set()
        thread.join()


def test_the_guard_imports_the_standard_library_alone():
    code = "import sys; import governor.processes.guard; print('\\n'.join(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], env=environ(), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    foreign = {name.partition(".")[0] for name in out.split()} - sys.stdlib_module_names - {"governor"}
    plugins = {
        name for name in foreign if name.startswith(("_distutils_hack", "__", "a1_coverage", "sitecustomize"))
    }
    assert foreign - plugins == set()
    assert "asyncio" not in out.split()

"""A Debian machine with systemd as PID 1, booted in a container without a network, never over the host's own root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

BOOT_SECONDS = 120.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INSIDE = ["--all", "--root", "--wdns=/root", "env", "-i", f"PATH={_PATH}", "HOME=/root", "LANG=C.UTF-8"]
_INSIDE += ["TERM=dumb", "PAGER=cat", "COLUMNS=120"]


@dataclass(frozen=True)
class Done:
    code: int
    output: str


class Machine:
    """`tree` is its root. Its console goes to the file `log`."""

    def __init__(self, tree, log):
        self.tree = tree
        self._log = log
        self._container = None
        self._leader = 0

    def boot(self):
        """Returns once the boot is over, whether all of its units came up or not."""
        command = ["systemd-nspawn", "--directory", self.tree, "--boot", "--private-network"]
        command += ["--register=no", "--keep-unit", "--console=pipe"]
        with self._log.open("ab") as log:
            self._container = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._leader = self._until(lambda: _leader_below(self._container.pid), "has no process 1")
        self._until(self._is_booted, "does not boot")

    def run(self, command, *, user="", check=True, seconds=180.0):
        """A command of bash, as root, or as a user with that user's own environment. Its output is standard output and error."""
        if user:
            command = f"runuser --login {user} --command {_quoted(command)}"
        done = subprocess.run(
            ["nsenter", f"--target={self._leader}", *_INSIDE, "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        output = done.stdout.decode(errors="replace")
        assert done.returncode == 0 or not check, f"$ {command}\nended with {done.returncode}:\n{output}"
        return Done(done.returncode, output)

    def until(self, command, *, wanted="", user="", seconds=90.0):
        """Runs it again and again until it ends with 0 and prints what is wanted; returns its output."""
        end = time.monotonic() + seconds
        while True:
            done = self.run(command, user=user, check=False)
            if done.code == 0 and wanted in done.output:
                return done.output
            assert time.monotonic() < end, f"$ {command}\n{wanted!r} did not come:\n{done.output}"

    def write(self, path, text, *, mode=0o644):
        place = self.tree / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def unit(self, *names):
        """Properties of the service's unit, as text."""
        shown = self.run(f"systemctl show run-governor --property={','.join(names)}").output
        found = dict(line.split("=", 1) for line in shown.splitlines())
        return found[names[0]] if len(names) == 1 else found

    def entries(self, matches):
        """Entries of the journal."""
        lines = self.run(f"journalctl {matches} --output=json --no-pager --quiet", check=False).output
        return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]

    def power_off(self):
        """In order; its console has it if that fails."""
        if self._container is not None and self._container.poll() is None:
            self._container.terminate()
            try:
                self._container.wait(BOOT_SECONDS)
            except subprocess.TimeoutExpired:
                self.lose_power()
                raise

    def lose_power(self):
        """All of its processes end at once."""
        os.kill(self._leader, signal.SIGKILL)
        self._container.wait(BOOT_SECONDS)

    def _is_booted(self):
        state = self.run("systemctl is-system-running --wait", check=False).output.strip()
        return state in {"running", "degraded"}

    def _until(self, found, fault):
        end = time.monotonic() + BOOT_SECONDS
        while not (value := found()):
            assert self._container.poll() is None, f"the machine ended: {self._log.read_text()[-3000:]}"
            assert time.monotonic() < end, f"the machine {fault}: {self._log.read_text()[-3000:]}"
        return value


def _leader_below(pid):
    """The pid of the process that is 1 in the container."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            status = Path(f"/proc/{child.pid}/status").read_text()
        except FileNotFoundError:
            continue
        numbers = next((line for line in status.splitlines() if line.startswith("NSpid:")), "").split()
        if len(numbers) > 2 and numbers[-1] == "1":
            return child.pid
    return 0


def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

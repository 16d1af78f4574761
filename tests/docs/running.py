"""Runs the blocks of a page in their order, in a temporary folder of the page's own, as CONTRIBUTING.md ("Snippets") says.

Rules:
1. All faults of a page are found in one run, but for one that does not end.
2. The environment holds nothing of the caller's: HOME, state, sockets and temporary files are below one short folder.
3. Whatever a page has started is killed at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from governor.executor import Executor
from governor.runs.assignment import UID_ALPHABET
from tests.docs import fragments, matching
from tests.docs.pages import ROOT, PageFault

PAGE_SECONDS = 200.0
"""For all blocks of a page; a page takes less than 40 on a busy machine."""
_MARK = "end-of-command-7f3a"
_LOOP = """\
__code=0
while IFS= read -r -d '' -u {fd} __command; do
    (exit "$__code"); eval "$__command"; __code=$?
    printf '\\n{mark} %s\\n' "$__code"
done
"""


@dataclass
class Command:
    text: str
    line: int
    output: str = ""


def commands_of(block, name):
    """The commands of a `console` block, each with its output. Raises PageFault."""
    found = []
    continues = False
    for number, line in enumerate(block.content.splitlines(), block.line + 1):
        if continues and not line.startswith("> "):
            raise PageFault(f"{name}:{number}: the line before ends in '\\': this one begins with '> '")
        if line.startswith("$ ") or continues:
            if continues:
                found[-1].text += f"\n{line[2:]}"
            else:
                found.append(Command(line[2:], number))
            continues = line.endswith("\\")
        elif found:
            found[-1].output += f"{line}\n"
        elif line.strip():
            raise PageFault(f"{name}:{number}: output before the first '$ '")
    if not found or continues:
        raise PageFault(f"{name}:{block.line}: a console block has a line with '$ '")
    return found


def run(page):
    """Runs all blocks; raises PageFault with all faults."""
    with contextlib.ExitStack() as stack:
        run = PageRun(page, stack)
        if "daemon" in page.directives:
            run.start_daemon()
        for index, block in enumerate(page.blocks):
            following = page.blocks[index + 1] if index + 1 < len(page.blocks) else None
            run.take(block, following, page.blocks[index - 1] if index else None)
        if run.faults:
            raise PageFault("\n\n".join(run.faults))


class PageRun:
    def __init__(self, page, stack):
        self.faults = []
        self._name = page.name
        self._stack = stack
        self._until = time.monotonic() + PAGE_SECONDS
        self._ids = {}
        """Id of a run on the page: the one that it stands for."""
        self._base = Path(tempfile.mkdtemp(prefix="gd-", dir="/tmp"))
        stack.callback(shutil.rmtree, self._base, ignore_errors=True)
        stack.callback(self._kill_all)
        self._folder = self._base / "my-project"
        self._folder.mkdir()
        self._environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self._base),
            "TMPDIR": str(self._base),
            "XDG_RUNTIME_DIR": str(self._base / "run"),
            "LANG": "C.UTF-8",
            "COLUMNS": "80",
            "RAY_worker_niceness": "0",
        }

    def take(self, block, following, before):
        """Runs one block; `following` and `before` are its neighbours."""
        if block.of("skip") or block.of("machine") or _missing(block):
            return
        for name in block.of("copy") or ():
            self._copy(name, block)
        is_output = block.language == "text" and block.title == "output"
        if is_output:
            if before is None or before.language != "python" or before.title:
                self._fault(block.line, "an output follows a python block without a title")
        elif block.language == "console":
            self._console(block)
        elif block.title:
            self._write(block)
        elif block.language == "python":
            shown = following is not None and (following.language, following.title) == ("text", "output")
            self._script(block, following.content if shown else None)
        else:
            for fault in fragments.faults_of(block.language, block.content):
                self._fault(block.line, f"in this fragment: {fault}")

    def start_daemon(self):
        with (self._base / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(
                ["governor", "serve", "--slots", "2", "--log-format", "json"],
                cwd=self._base,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                executable=str(Path(sys.executable).parent / "governor"),
            )
        self._stack.callback(_stop, daemon)
        endpoint = f"ipc://{self._base / 'run' / 'run-governor' / 'broker.sock'}"
        self._environ["GOVERNOR_BROKER"] = endpoint
        asyncio.run(_answers(endpoint, daemon, self._base / "daemon.log"))

    def _fault(self, line, text):
        self.faults.append(f"{self._name}:{line}: {text}")

    def _copy(self, name, block):
        """Under its path in the repository and under its own name: a page may show either."""
        source = ROOT / name
        if not source.is_file():
            self._fault(block.line, f"there is no file {name} to copy")
            return
        for target in (self._folder / name, self._folder / source.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def _write(self, block):
        target = (self._folder / block.title).resolve()
        if not target.is_relative_to(self._folder):
            self._fault(block.line, f"the title {block.title!r} leads out of the page's folder")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.content)

    def _script(self, block, shown):
        script = self._folder / f".block_{block.line}.py"
        script.write_text(block.content)
        code, output = self._shell().run(f"python {script.name}", block.line)
        script.unlink()
        if code:
            self._fault(block.line, f"this script ended with exit code {code}:\n{output}")
        elif shown is not None and (wrong := matching.difference(shown, output, self._ids)):
            self._fault(block.line, _mismatch("this script", wrong, output))

    def _console(self, block):
        shell = self._shell()
        commands = commands_of(block, self._name)
        for index, command in enumerate(commands):
            code, output = shell.run(_with_ids(command.text, self._ids), command.line)
            asked = index + 1 < len(commands) and "$?" in commands[index + 1].text
            if wrong := matching.difference(command.output, output, self._ids):
                self._fault(command.line, _mismatch(f"$ {command.text}", wrong, output))
            elif code and not asked and command.output.strip() in {"", "..."}:
                self._fault(
                    command.line,
                    f"$ {command.text}\nended with exit code {code}, which nothing shows:\n{output}",
                )

    def _shell(self):
        return Shell(self._folder, self._environ, self._until, self._name, self._stack)

    def _kill_all(self):
        end = time.monotonic() + 10.0
        while (left := list(self._processes())) and time.monotonic() < end:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1.0)

    def _processes(self):
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HOME") == str(
                    self._base
                ):
                    yield process


class Shell:
    """One bash, which is given one command at a time."""

    def __init__(self, folder, environ, until, name, stack):
        self._until = until
        self._name = name
        taken, self._commands = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", _LOOP.format(fd=taken, mark=_MARK)],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(taken,),
            start_new_session=True,
        )
        os.close(taken)
        stack.callback(self._close)

    def run(self, command, line):
        """Exit code and output. Raises PageFault when it does not end in time."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, command.encode() + b"\0")
        output = b""
        stream = self._process.stdout.fileno()
        while not (end := re.search(rf"\n{_MARK} (\d+)\n".encode(), output)):
            if not select.select([stream], [], [], max(0.0, self._until - time.monotonic()))[0]:
                raise PageFault(
                    f"{self._name}:{line}: the page's {PAGE_SECONDS:g} s are over, and this runs:\n$ {command}\n"
                    f"{output.decode(errors='replace')}"
                )
            if not (more := os.read(stream, 65536)):
                return self._process.wait(), output.decode(errors="replace")
            output += more
        return int(end[1]), output[: end.start()].decode(errors="replace")

    def _close(self):
        os.close(self._commands)
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


def _missing(block):
    return [name for name in block.of("needs") or () if importlib.util.find_spec(name) is None]


def _with_ids(command, ids):
    """`command` with the ids of runs and groups (``g-...``) that are there, for those, or beginnings of those, that the page shows."""

    def replaced(word):
        return next((ids[known] for known in ids if known.startswith(word[0])), word[0])

    return re.sub(rf"(?:(?<![\w-])|(?<= g-))[{UID_ALPHABET}]{{3,8}}(?!\w)", replaced, command)


def _mismatch(what, wrong, output):
    return f"{what}\n{wrong}\nwhole output:\n{output.strip()}"


def _stop(daemon):
    daemon.terminate()
    try:
        daemon.wait(30.0)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


async def _answers(endpoint, daemon, log):
    async with asyncio.timeout(60):
        while daemon.poll() is None:
            with contextlib.suppress(Exception):
                async with Executor(endpoint) as executor:
                    await executor.status()
                    return
    raise PageFault(f"the daemon ended with {daemon.returncode}: {log.read_text()[-5000:]}")

"""Service conductor: runs a program beside the run, such as a model server, and ends with it.

It is ready when its program is. When its program ends, with whatever code, the conductor has failed: the run needs it until its own
end. What the program has started ends with the conductor.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.conductors.conductor import Conductor
from governor.errors import ConductorError, ProcessError
from governor.failures import Reason, one_line, shortened, utf8
from governor.output.lines import as_shown
from governor.processes.program import Program, reason_of_exit
from governor.processes.readiness import readable
from governor.units import placeholders

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.messages import ConductorSpec
    from governor.messages.link import Link

HOST: Final = "127.0.0.1"
TERMINATE_SECONDS: Final = 2.0
"""Between SIGTERM and SIGKILL, at the end of the run."""
ASK_SECONDS: Final = (0.05, 1.0)
"""Between two looks at whether it is ready, at first and at most: nothing tells of a port that is taken into use."""
ANSWER_SECONDS: Final = 5.0
"""For an answer to such a look."""
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))

log = logs.get_logger()


class ServiceConductor(Conductor):
    """Settings: those of the run file, with `port`."""

    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        self._port: int = spec.settings["port"]
        self._ready: dict[str, Any] = spec.settings.get("ready") or {}
        self._program: Program | None = None
        self._line_seen = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    async def prepare(self) -> dict[str, Any]:
        settings = self.spec.settings
        self._require_free_port()
        home = Path.cwd()
        try:
            self._program = Program(
                [self._filled(word) for word in settings["command"]],
                cwd=home if settings.get("cwd") is None else home / self._filled(settings["cwd"]),
                env={
                    "PORT": str(self._port),
                    "GOVERNOR_RUN": self.spec.uid,
                    "GOVERNOR_RUN_FOLDER": self.spec.run_folder,
                    **{name: self._filled(value) for name, value in settings.get("env", {}).items()},
                },
                on_line=self._watch_lines(),
            )
        except ProcessError as error:
            raise ConductorError(str(error)) from None
        self._watch = asyncio.create_task(self._wait(self._program), name="service.wait")
        await self._until_ready()
        return {"program": self._program.pid, "port": self._port}

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._program is not None:
            await asyncio.to_thread(self._program.terminate, TERMINATE_SECONDS)

    def _filled(self, text: str) -> str:
        known = {
            "port": self._port,
            "run": self.spec.uid,
            "run_folder": self.spec.run_folder,
            "python": sys.executable,
        }
        return placeholders.filled(text, known.__getitem__)

    def _require_free_port(self) -> None:
        """Another server there would seem to be this one. Raises ConductorError."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self._port))
            except OSError as error:
                reason = f"port {self._port} is not free: {os.strerror(error.errno or 0)}"
                raise ConductorError(reason) from None

    def _watch_lines(self) -> Callable[[str], None] | None:
        if self._ready.get("line") is None:
            return None
        pattern, loop = re.compile(self._ready["line"]), asyncio.get_running_loop()

        def look_at(line: str) -> None:
            if pattern.search(line) or pattern.search(as_shown(line)):
                loop.call_soon_threadsafe(self._line_seen.set)

        return look_at

    async def _wait(self, program: Program) -> None:
        """Fails when the program ends."""
        handle = os.pidfd_open(program.pid)  # not reaped yet
        try:
            await readable(handle)
        finally:
            os.close(handle)
        code = program.wait() or 0
        await asyncio.to_thread(program.read_all)
        said = program.stderr.end.strip("\n")
        reason = f"its program ended: {reason_of_exit(code, said)}"
        self.fail(Reason(utf8(reason), shortened(utf8(said))))

    async def _until_ready(self) -> None:
        if self._ready.get("line") is not None:
            await self._line_seen.wait()
            return
        pause, longest = ASK_SECONDS
        told = ""
        while lacking := await self._lacking():
            if lacking != told:
                log.info("service.not_ready_yet", lacking=lacking)
                told = lacking
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _lacking(self) -> str:
        """Why it does not count as ready, in one line; empty if it does."""
        url = self._ready.get("http")
        try:
            if url is not None:
                address = f"http://{HOST}:{self._port}{url}" if url.startswith("/") else url
                await asyncio.to_thread(_get, self._filled(address))
            else:
                async with asyncio.timeout(ANSWER_SECONDS):
                    _, writer = await asyncio.open_connection(HOST, self._port)
                    writer.close()
        except (OSError, ValueError, HTTPException) as error:  # URLError and HTTPError too
            return one_line(error)
        return ""


def _get(url: str) -> None:
    """Raises OSError, ValueError for what is no URL, and HTTPException for what is no answer of HTTP."""
    with _OPENER.open(url, timeout=ANSWER_SECONDS) as answer:
        answer.read(1)

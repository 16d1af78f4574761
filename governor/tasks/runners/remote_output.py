"""What runners on other nodes print: fetched from the agents of their nodes, and written to spools on this machine.

Rules:
1. The next lines of a node are asked for when those before are written: a node sends no faster than they are.
2. A runner's process has spools here as if it ran on this machine, with its own pid; lines bear the name of its node.
3. Of a node that is lost, what its agent still answers is kept.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import logs
from governor.messages import OutputLine
from governor.output import spool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from governor.tasks.cluster.cluster import Cluster
    from governor.tasks.protocol.wire import Hello

WAIT_SECONDS: Final = 0.25
"""For a line, in one call of a node's agent: the end of a driver waits for its answer."""
ANSWER_SECONDS: Final = 30.0
LAST_SECONDS: Final = 1.0
"""For all that is left, at the end."""
AGAIN_SECONDS: Final = 1.0
OPEN_PROCESSES: Final = 64
"""Spools that are held open; a process that prints again gets others."""
_FIELDS: Final = ("level", "logger", "task", "run", "attempt", "phase", "episode", "evaluation")

log = logs.get_logger()


class RemoteOutput:
    """That of one driver. `folder` has its spools, as those of `conductor`."""

    def __init__(self, *, cluster: Cluster, folder: Path, conductor: str) -> None:
        self._cluster = cluster
        self._folder = folder
        self._conductor = conductor
        self._nodes: dict[str, tuple[str, str]] = {}
        """Name and folder of the spools there, by Ray's id of the node."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._is_closing = False
        self._written: dict[tuple[str, int], tuple[int, int]] = {}
        """Descriptors of the spools of both streams, by node and pid."""

    def follow(self, hello: Hello) -> None:
        """Fetches what runners print on the node of this one, from now on. Idempotent."""
        if not hello.spools or hello.node in self._reading:
            return
        self._nodes[hello.node] = (hello.host, hello.spools)
        name = f"node.{hello.host}.output"
        self._reading[hello.node] = asyncio.create_task(self._read_all(hello.node), name=name)

    async def close(self) -> None:
        """Fetches what is left, when no runner is at work any more."""
        self._is_closing = True
        if self._reading:
            _, late = await asyncio.wait(self._reading.values(), timeout=LAST_SECONDS)
            for reading in late:
                reading.cancel()
            await asyncio.gather(*(self._read_last(node) for node in self._nodes))
        for spools in self._written.values():
            _close(spools)
        self._written.clear()

    async def _read_all(self, node: str) -> None:
        while not self._is_closing:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._read(node, WAIT_SECONDS)
            except Exception as error:  # noqa: BLE001  # whatever Ray raises
                log.debug(
                    "node.output_unavailable",
                    node=self._nodes[node][0],
                    reason=f"{type(error).__name__}: {error}",
                )
                if await self._cluster.is_lost(node):
                    return
                await asyncio.sleep(AGAIN_SECONDS)

    async def _read_last(self, node: str) -> None:
        try:
            async with asyncio.timeout(LAST_SECONDS):
                while await self._read(node, 0.0):
                    pass
        except Exception as error:  # noqa: BLE001  # as above
            log.warning(
                "node.output_lost", node=self._nodes[node][0], reason=f"{type(error).__name__}: {error}"
            )

    async def _read(self, node: str, seconds: float) -> bool:
        """Whether there were lines."""
        host, folder = self._nodes[node]
        answer = await self._cluster.ask_agent(node, "read_output", folder, seconds)
        lines = _decode(answer)
        await asyncio.shield(asyncio.to_thread(self._write, host, lines))
        return bool(lines)

    def _write(self, host: str, lines: Iterable[OutputLine]) -> None:
        """In a thread, one call at a time."""
        for line in lines:
            known = self._written.get((host, line.pid))
            try:
                spools = known or self._create(host, line.pid)
                os.write(spools[line.stream != "stdout"], _record(line, host))
            except OSError:  # a full disk
                continue

    def _create(self, host: str, pid: int) -> tuple[int, int]:
        while len(self._written) >= OPEN_PROCESSES:
            _close(self._written.pop(next(iter(self._written))))
        stem = spool.new_stem(self._conductor, pid)
        out = spool.create(self._folder, stem, "out")
        try:
            spools = self._written[host, pid] = (out, spool.create(self._folder, stem, "err"))
        except OSError:
            os.close(out)
            raise
        return spools


_decode: Final = msgspec.msgpack.Decoder(list[OutputLine]).decode


def _record(line: OutputLine, host: str) -> bytes:
    fields: dict[str, Any] = {name: getattr(line, name) for name in _FIELDS}
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    if line.dropped is not None:
        given["lost"] = line.dropped[0]
    return spool.record(spool.fragment(node=host, **given), line.text.encode("utf-8", "backslashreplace"))


def _close(spools: tuple[int, int]) -> None:
    for descriptor in spools:
        os.close(descriptor)

"""The services of one run: their ports, and whether all of them are ready.

Rules:
1. A port is chosen when the run leaves the queue, and stays for as long as it is in work: others have been told.
2. Other conductors start when all services are ready: what they build may need them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from governor.run_file import services as declared
from governor.run_file.load import parse
from governor.run_file.model import SERVICE

if TYPE_CHECKING:
    from governor.run_file.model import Run
    from governor.runs.assignment import Assignment

LOWEST: Final = 20_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_numbers: Final = count(secrets.randbelow(10_000))
"""Runs of a daemon get different ports; those of several daemons begin at random."""


class Services:
    """Follows the conductors of the services, by their names in the plan."""

    def __init__(self, assignment: Assignment) -> None:
        self._missing = {f"{SERVICE}.{name}" for name in assignment.run.conductors.services}
        self._ready = asyncio.Event()
        self._look()

    def is_ready(self, conductor: str) -> None:
        self._missing.discard(conductor)
        self._look()

    def is_gone(self, conductor: str) -> None:
        """Until its next incarnation is ready."""
        if conductor.startswith(f"{SERVICE}."):
            self._missing.add(conductor)
            self._look()

    async def wait(self) -> None:
        """Returns when all of them are ready."""
        await self._ready.wait()

    def _look(self) -> None:
        if self._missing:
            self._ready.clear()
        else:
            self._ready.set()


def with_ports(assignment: Assignment) -> Assignment:
    """The assignment with a port for each service, which is filled in wherever its run names it. Blocks for as long as
    its run file takes to read.
    """
    services = assignment.run.conductors.services
    if not services:
        return assignment
    ports = {name: section.fixed_port or free_port() for name, section in services.items()}
    return replace(assignment, run=filled_in(assignment.run, ports), ports=ports)


def filled_in(run: Run, ports: dict[str, int]) -> Run:
    """The run with these ports of its services."""
    return parse(declared.with_ports(run.raw(), ports.get), run.name) if ports else run


def free_port() -> int:
    """A port of the loopback interface that nobody uses now, and that the system gives to nobody, if there is one."""
    highest = _first_ephemeral()
    for _ in range(highest - LOWEST):
        port = LOWEST + next(_numbers) % (highest - LOWEST)
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def _bound(port: int) -> int:
    """Raises OSError where it is in use; 0: one that the system chooses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        number: int = probe.getsockname()[1]
    return number


def _first_ephemeral() -> int:
    """Above it the system chooses ports for connections."""
    try:
        first = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    return first if first > LOWEST + 100 else 32_768

"""`governor check --build`: each environment of a run file is built with its agents, in a process of its own, and plays one step.

Phases with the same environment, agents and mode are built once. A fault has its place in the run file.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from governor.cli.trial.build_process import Built, Order
from governor.cli.trial.choice import simulation_of
from governor.failures import HIDDEN, signal_name
from governor.messages.base import encode
from governor.processes import supervisor
from governor.runs.variables import of_run, require_secrets

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from typing import BinaryIO

    from governor.messages import StartSimulation
    from governor.run_file.model import Run
    from governor.units.sections import Path as Place

SECONDS: Final = 60.0
START_SECONDS: Final = 60.0
"""Limit for the start of the process itself, and for its report of a hang: in addition."""
TAIL: Final = 30
"""Lines that are shown of what a process printed that ended without a report: Python's own of a crash come last."""
_WRAPPER: Final = re.compile(r"wrappers\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What came of an environment and its agents, in all of these phases. `place` is that of its fault in the run file."""

    phases: tuple[str, ...]
    environment: str
    agents: tuple[str, ...]
    built: Built
    seconds: float
    place: Place

    @property
    def message(self) -> str:
        """Its fault in one line."""
        return f"phase {self.phases[0]}: {self.built.fault}"


def builds(run: Run, folder: str, *, seconds: float) -> Iterator[Build]:
    """Of each phase with episodes, one after the other. Raises OSError where no process can be started, ProcessError for an `env_file`
    that can't be read, UsageError for a secret.
    """
    require_secrets([run])
    variables = of_run(run, folder)
    groups: dict[object, list[tuple[str, StartSimulation]]] = {}
    known: dict[str, tuple[str, tuple[str, str]]] = {}
    for index, phase in enumerate(run.phases):
        if phase.simulate is not None:
            command = simulation_of(run, folder, index)
            key = command.environment, command.agents, str(command.players), command.mode, str(command.info)
            groups.setdefault(key, []).append((phase.name, command))
    for group in groups.values():
        command, began = group[0][1], time.monotonic()
        built = _built(command, folder, seconds, variables)
        if not built.fault and run.phases[command.phase].simulate.transport != "ray":  # type: ignore[union-attr]  # it has one
            _compare(built, group[0][0], known)
        yield Build(
            phases=tuple(name for name, _ in group),
            environment=command.environment,
            agents=command.agents,
            built=built,
            seconds=time.monotonic() - began,
            place=_place(command, built),
        )


def _compare(built: Built, phase: str, known: dict[str, tuple[str, tuple[str, str]]]) -> None:
    """An agent goes on from phase to phase, in the spaces that it was built for. `known`: the first phase of each, and these."""
    spaces = built.spaces.get("")
    if spaces is None:
        return
    first, before = known.setdefault(built.agent, (phase, spaces))
    if before != spaces:
        built.where = "agent.__init__"
        built.fault = (
            f"agent {built.agent!r} was built for other spaces in phase {first}: observations {before[0]} and "
            f"actions {before[1]}, and now gets {spaces[0]} and {spaces[1]}"
        )


def _built(command: StartSimulation, folder: str, seconds: float, variables: dict[str, str]) -> Built:
    scratch = tempfile.mkdtemp(prefix="governor-check-")
    try:
        order = Order(
            command=encode(command), folder=folder, scratch=scratch, seconds=seconds, variables=variables
        )
        data = msgspec.msgpack.encode(order)
        with (
            tempfile.TemporaryFile() as output,
            supervisor.started(
                "governor.cli.trial.build_process", data, output=output.fileno(), folder=scratch
            ) as (
                reading,
                process,
            ),
        ):
            try:
                if reading.poll(START_SECONDS + seconds):
                    return msgspec.msgpack.decode(reading.recv_bytes(), type=Built)
            except EOFError:
                return Built(fault=_end_of(process), traceback=_tail(output), agent=command.agents[0])
            late = f"user code does not end within {seconds:g} s, and lets nothing else run"
            return Built(fault=late, traceback=_tail(output), agent=command.agents[0])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    if code < 0:
        return f"user code crashes Python ({signal_name(-code)})"
    return f"user code ends Python with exit code {code}"


def _tail(output: BinaryIO) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    ours = (*(f'File "{name}' for name in HIDDEN), "Extension modules: ")
    return "\n".join([line for line in lines if not line.lstrip().startswith(ours)][-TAIL:]).strip("\n")


def _place(command: StartSimulation, built: Built) -> Place:
    if built.where.startswith("agent.") or built.where == "model":
        return ("conductors", "agents", built.agent, "entry")
    environment: Place = ("conductors", "environments", command.environment)
    if found := _WRAPPER.search(built.fault):
        return (*environment, "wrappers", int(found[1]))
    return (*environment, "entry")

"""Whether the user code that a run names can be imported, asked in a process of its own.

Rules:
1. User code is imported by `governor.run_file.entry_probe`, never in this process: it may print, hang, exit or crash there.
2. Entries are asked one after the other; the one that brings the probe down is the fault, the rest are asked again
   by a fresh probe, so that all faults are found. Entries of a module that brought it down once are not tried again.
3. What is imported is what a conductor would import: not the folder in which somebody happens to be (-P), and no module that
   one of a conductor shadows.
4. Each entry has a time limit. The probe and all of its process group are gone when `faults` returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from governor.episodes.text.entries import is_language_model, is_over_http
from governor.run_file.phase_inheritance import Cascade
from governor.units.fields import ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from governor.run_file.yaml_lines import Path as Place

T = TypeVar("T", dict[str, Any], list[Any])
IMPORT_SECONDS: Final = 60.0
"""The longest that the import of one entry may take."""
START_SECONDS: Final = 60.0
"""It may import all that a conductor has (`shadowing`): 3 s on a quiet machine, more on a cold disk."""
AGAIN: Final = ("actor", "heir", "kept")
"""Kinds of entries that are asked about a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEntry:
    """What a run names at `place`: the `entry` of a conductor, the `call` of a task, or the `state` of an agent (a file). `kind` is
    environment, text environment, agent, state, task, or what an agent is to be beside: on Ray ``actor``, which does not
    learn, or ``heir``, which has what it learned elsewhere; ``kept`` where checkpoints of it are taken.
    """

    place: Place
    kind: str
    target: str


def of_data(data: object) -> list[UserEntry]:
    """Every entry and call of a run given as plain data, as far as it makes sense, in the order of the file."""
    found: list[UserEntry] = []
    conductors = _in(_in(data, dict).get("conductors"), dict)
    played = _played(data)
    for name, made in _in(conductors.get("environments"), dict).items():
        for kind in sorted(played.get(name, {"environment"})):
            found += _entry(("conductors", "environments", name, "entry"), kind, made)
    for name, made in _in(conductors.get("agents"), dict).items():
        found += _entry(("conductors", "agents", name, "entry"), "agent", made)
        state = _in(made, dict).get("state")
        if isinstance(state, str) and state:
            found.append(UserEntry(place=("conductors", "agents", name, "state"), kind="state", target=state))
    found += _on_ray(_in(data, dict), _in(conductors.get("agents"), dict))
    found += _kept(data, _in(conductors.get("agents"), dict))
    for index, phase in enumerate(_in(_in(data, dict).get("phases"), list)):
        for number, task in enumerate(_in(_in(phase, dict).get("tasks"), list)):
            found += _entry(("phases", index, "tasks", number, "call"), "task", task)
    return found


def _played(data: object) -> dict[str, set[str]]:
    """The kinds that each environment must be of, by who plays in it."""
    found: dict[str, set[str]] = {}
    agents = _in(_in(_in(data, dict).get("conductors"), dict).get("agents"), dict)
    for phase in _in(_in(data, dict).get("phases"), list):
        simulate = _in(_in(phase, dict).get("simulate"), dict)
        entries = [_in(agents.get(name), dict).get("entry") for _, name in _named(simulate)]
        kind = (
            "text environment" if any(is_language_model(str(entry)) for entry in entries) else "environment"
        )
        found.setdefault(str(simulate.get("environment")), set()).add(kind)
    return found


def _named(simulate: dict[str, Any]) -> list[tuple[str | int, str]]:
    """The agents of a phase, by their place."""
    agents = simulate.get("agents")
    places: Any = agents.items() if isinstance(agents, dict) else enumerate(_in(agents, list))
    return [(place, name) for place, name in places if isinstance(name, str)]


def _on_ray(data: dict[str, Any], agents: dict[str, Any]) -> list[UserEntry]:
    """Agents in phases that are played on Ray."""
    found: list[UserEntry] = []
    trained: set[str] = set()
    for index, phase in enumerate(_in(data.get("phases"), list)):
        simulate = _in(_in(phase, dict).get("simulate"), dict)
        names = [name for _, name in _named(simulate)]
        trains = _in(phase, dict).get("mode", "train") == "train"
        if simulate.get("transport") != "ray":
            trained |= set(names) if trains else set()
            continue
        for number, name in _named(simulate):
            place = ("phases", index, "simulate", "agents", number)
            if trains or name in trained:
                asked = _entry(("entry",), "actor" if trains else "heir", agents.get(name))
                found += [replace(entry, place=place) for entry in asked]
    return found


def _kept(data: object, agents: dict[str, Any]) -> list[UserEntry]:
    """Agents of which checkpoints are taken, each at the first phase that does."""
    places: dict[str, Place] = {}
    for index, phase in enumerate(_in(_in(Cascade(data).data, dict).get("phases"), list)):
        if _in(phase, dict).get("checkpoint") is not None:
            for _, name in _named(_in(phase.get("simulate"), dict)):
                places.setdefault(name, ("phases", index, "checkpoint"))
    asked = [(place, _entry(("entry",), "kept", agents.get(name))) for name, place in places.items()]
    return [replace(entry, place=place) for place, found in asked for entry in found]


def _entry(place: Place, kind: str, section: object) -> list[UserEntry]:
    target = _in(section, dict).get(str(place[-1]))
    if not isinstance(target, str) or not re.fullmatch(ENTRY, target):
        return []
    if (kind in ("agent", "kept") and is_language_model(target)) or (
        "environment" in kind and is_over_http(target)
    ):
        return []
    return [UserEntry(place=place, kind=kind, target=target)]


def _in(value: Any, kind: type[T]) -> T:
    return value if isinstance(value, kind) else kind()


def faults(
    entries: Sequence[UserEntry], *, folder: Path, import_seconds: float = IMPORT_SECONDS
) -> list[tuple[Place, str]]:
    """The entries that can't be used, each with the reason in one line. Blocks; `folder` is put on the import path."""
    verdicts: dict[tuple[str, str], str] = {}
    pending = list(dict.fromkeys((entry.kind, entry.target) for entry in entries))
    while pending:
        asked = pending[0]
        for question, verdict in _probe(pending, folder=folder, import_seconds=import_seconds):
            verdicts[question] = verdict
            asked = question
        fatal = verdicts.get(asked, "")
        module = asked[1].partition(":")[0]
        pending = [question for question in pending if question not in verdicts]
        if asked[0] == "state" or asked[1].startswith("gymnasium:") or not pending:
            continue
        for question in [question for question in pending if question[1].partition(":")[0] == module]:
            verdicts[question] = fatal
            pending.remove(question)
    found = [(entry, verdicts[entry.kind, entry.target]) for entry in entries]
    return [(entry.place, verdict) for entry, verdict in found if verdict and not _told(entry, verdicts)]


def _told(entry: UserEntry, verdicts: dict[tuple[str, str], str]) -> bool:
    """Whether the same stands at the agent's own place."""
    own = verdicts.get(("agent", entry.target))
    return entry.kind in AGAIN and own == verdicts[entry.kind, entry.target]


def _probe(
    questions: list[tuple[str, str]], *, folder: Path, import_seconds: float
) -> Iterator[tuple[tuple[str, str], str]]:
    """Verdicts ("" is good) of one probe process; the last one tells what ended it, when it did not answer all."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "governor.run_file.entry_probe",
            str(writing),
            str(folder),
            json.dumps(questions),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    answered = 0
    try:
        lines = _lines(reading, first=START_SECONDS, each=import_seconds)
        next(lines, None)  # the probe is up: from now on each entry has its own time
        for question, line in zip(questions, lines, strict=False):
            answered += 1
            yield question, json.loads(line)
        if answered < len(questions):
            yield questions[answered], _end(process, import_seconds)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end(process: subprocess.Popen[bytes], import_seconds: float) -> str:
    try:
        code = process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return f"the import does not end within {import_seconds:g} s"
    if code < 0:
        return f"the import crashes Python ({signal.Signals(-code).name})"
    return f"the import ends Python with exit code {code}"


def _lines(descriptor: int, *, first: float, each: float) -> Iterator[bytes]:
    """Lines as they come; ends when the writer has gone, or when one takes longer than it may (seconds)."""
    buffer = b""
    limit = first
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            deadline = time.monotonic() + limit
            while b"\n" not in buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return
                piece = os.read(descriptor, 65536)
                if not piece:
                    return
                buffer += piece
            line, _, buffer = buffer.partition(b"\n")
            yield line
            limit = each

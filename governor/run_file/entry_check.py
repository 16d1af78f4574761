"""Checks in a process of its own whether the user code that a run names can be imported.

Rules:
1. `governor.run_file.entry_probe` imports user code, never this process: there it may print, hang, exit or crash.
2. The probe checks one entry after the other; one that ends the probe is a fault, and a fresh probe checks the rest, so
   that all faults are found. Entries of a module that ended a probe are not tried again.
3. The probe imports what a conductor would import: nothing from the current folder, and no module that a module of
   conductors shadows.
4. Each entry has a time limit. The probe and all that it has started are gone when `faults` returns (`supervisor`).
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from governor.episodes.text.entries import is_language_model, is_over_http
from governor.failures import signal_name
from governor.processes import supervisor
from governor.run_file.phase_inheritance import PhaseInheritance
from governor.run_file.plain_data import entry_of, is_count, items, mapping, simulations, vector_of
from governor.units.fields import ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from governor.run_file.signatures import Faults
    from governor.units.sections import Path as Place

Question: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Kind, target and params of an entry."""
IMPORT_SECONDS: Final = 60.0
"""Limit for the import of one entry."""
START_SECONDS: Final = 60.0
"""Limit for the start of the probe, which may import all that a conductor has (`shadowing`): 3 s on a quiet machine, more on
a cold disk."""
_ARGUMENTS: Final = {"entry": "params", "call": "args"}
"""The key with the arguments of an entry."""
REPEATED_KINDS: Final = ("actor", "trained", "checkpointed", "learner of several", "player of all at once")
"""Kinds of checks of entries that are checked as agents, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEntry:
    """User code that a run names at `place`: the `entry` of a conductor, the `call` of a task, or the `state` of an agent (a file). `kind` is
    environment, wrapped environment, text environment, wrapper, agent, state, task, condition, or a further use of an agent: on Ray
    ``actor``, which does not learn, or ``trained``, which loads what it learned elsewhere; ``checkpointed`` where checkpoints of it
    are taken; ``learner of several`` where the steps of several workers train it; ``player of all at once`` in a vector whose
    environments step together. `params` are the names of its arguments in the
    run file.
    """

    place: Place
    kind: str
    target: str
    params: tuple[str, ...] = ()

    @property
    def question(self) -> Question:
        """What the probe is asked."""
        return self.kind, self.target, self.params

    def place_of(self, argument: str) -> Place:
        """Where an argument is; "" is the entry itself."""
        return (*self.place[:-1], _ARGUMENTS[str(self.place[-1])], argument) if argument else self.place


def of_data(data: object) -> list[UserEntry]:
    """Every entry and call of a run given as plain data, where that is sound, in the order of the file."""
    found: list[UserEntry] = []
    conductors = mapping(mapping(data).get("conductors"))
    agents = mapping(conductors.get("agents"))
    played = _kinds_of_environments(data, agents)
    for name, made in mapping(conductors.get("environments")).items():
        place = ("conductors", "environments", name)
        for kind in sorted(played.get(name, {"environment"})):
            found += _entry((*place, "entry"), kind, _as_called(made))
        for number, wrapper in enumerate(items(mapping(made).get("wrappers"))):
            section = {"entry": wrapper} if isinstance(wrapper, str) else wrapper
            found += _entry((*place, "wrappers", number, "entry"), "wrapper", section)
    for name, made in agents.items():
        found += _entry(("conductors", "agents", name, "entry"), "agent", made)
        state = mapping(made).get("state")
        if isinstance(state, str) and state:
            found.append(UserEntry(place=("conductors", "agents", name, "state"), kind="state", target=state))
    found += _on_ray(data, agents)
    found += _checkpointed(data, agents)
    found += _learners_of_several(data, agents)
    found += _players_of_all_at_once(data, agents)
    for index, phase in enumerate(items(mapping(data).get("phases"))):
        for number, rule in enumerate(items(mapping(phase).get("until"))):
            found += _entry(("phases", index, "until", number, "entry"), "condition", rule)
        for number, task in enumerate(items(mapping(phase).get("tasks"))):
            found += _entry(("phases", index, "tasks", number, "call"), "task", task)
    return found


def _as_called(section: object) -> object:
    """An environment's section with all params: a native vector of the user's own is called with `num_envs`, too."""
    if vector_of(section)[1] != "native" or entry_of(section).startswith("gymnasium:"):
        return section
    return {**mapping(section), "params": {"num_envs": 1, **mapping(mapping(section).get("params"))}}


def _kinds_of_environments(data: object, agents: Mapping[str, Any]) -> dict[str, set[str]]:
    """The kinds that each environment must be of, by the agents that play in it."""
    found: dict[str, set[str]] = {}
    for one in simulations(data):
        of_text = any(is_language_model(entry_of(agents.get(name))) for _, name in one.agents)
        whole = "wrapped environment" if items(one.section.get("wrappers")) else "environment"
        kind = "text environment" if of_text else whole
        found.setdefault(str(one.environment), set()).add(kind)
    return found


def _on_ray(data: object, agents: Mapping[str, Any]) -> list[UserEntry]:
    """The agents of phases with transport ray."""
    found: list[UserEntry] = []
    trained: set[str] = set()
    for one in simulations(data):
        trains = one.phase.get("mode", "train") == "train"
        if one.transport != "ray":
            trained |= {name for _, name in one.agents if trains}
            continue
        for step, name in one.agents:
            if trains or name in trained:
                asked = _entry(("entry",), "actor" if trains else "trained", agents.get(name))
                found += [replace(entry, place=(*one.path, "agents", step)) for entry in asked]
    return found


def _checkpointed(data: object, agents: Mapping[str, Any]) -> list[UserEntry]:
    """The agents of phases with `checkpoint`, each at its first such phase."""
    places: dict[str, Place] = {}
    for one in simulations(PhaseInheritance(data).data):
        if one.phase.get("checkpoint") is not None:
            for _, name in one.agents:
                places.setdefault(name, ("phases", one.index, "checkpoint"))
    return _used("checkpointed", places, agents)


def _learners_of_several(data: object, agents: Mapping[str, Any]) -> list[UserEntry]:
    """The agents that several environments at once train, each at its first such phase."""
    places: dict[str, Place] = {}
    for one in simulations(PhaseInheritance(data).data):
        workers, vector = one.simulate.get("workers", 1), vector_of(one.section)[0]
        several = [size for size in (workers, vector) if is_count(size) and size > 1]
        if several and one.transport != "ray" and one.phase.get("mode", "train") == "train":
            key = "workers" if is_count(workers) and workers > 1 else "environment"
            for _, name in one.agents:
                places.setdefault(name, (*one.path, key))
    return _used("learner of several", places, agents)


def _players_of_all_at_once(data: object, agents: Mapping[str, Any]) -> list[UserEntry]:
    """The agents in vectors of mode native and async, each at its first such phase."""
    places: dict[str, Place] = {}
    for one in simulations(data):
        if vector_of(one.section)[1] in ("native", "async"):
            for step, name in one.agents:
                places.setdefault(name, (*one.path, "agents", step))
    return _used("player of all at once", places, agents)


def _used(kind: str, places: Mapping[str, Place], agents: Mapping[str, Any]) -> list[UserEntry]:
    """A further use of these agents, by name."""
    asked = [(place, _entry(("entry",), kind, agents.get(name))) for name, place in places.items()]
    return [replace(entry, place=place) for place, found in asked for entry in found]


def _entry(place: Place, kind: str, section: object) -> list[UserEntry]:
    target = mapping(section).get(str(place[-1]))
    if not isinstance(target, str) or not re.fullmatch(ENTRY, target):
        return []
    if (kind in ("agent", *REPEATED_KINDS) and is_language_model(target)) or (
        "environment" in kind and is_over_http(target)
    ):
        return []
    if kind in REPEATED_KINDS:
        return [UserEntry(place=place, kind=kind, target=target)]
    params = tuple(map(str, mapping(mapping(section).get(_ARGUMENTS[str(place[-1])]))))
    return [UserEntry(place=place, kind=kind, target=target, params=params)]


def faults(
    entries: Sequence[UserEntry],
    *,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    import_seconds: float = IMPORT_SECONDS,
) -> list[tuple[Place, str]]:
    """The entries, and arguments of them, that can't be used, each with the reason in one line. They are imported with `folder` on the
    import path, and with these environment `variables`. Blocks.
    """
    verdicts: dict[Question, Faults] = {}
    pending = list(dict.fromkeys(entry.question for entry in entries))
    while pending:
        asked = pending[0]
        for question, verdict in _probe(
            pending, folder=folder, variables=variables or {}, import_seconds=import_seconds
        ):
            verdicts[question] = verdict
            asked = question
        fatal = verdicts.get(asked, ())
        module = asked[1].partition(":")[0]
        pending = [question for question in pending if question not in verdicts]
        if asked[0] == "state" or asked[1].startswith("gymnasium:") or not pending:
            continue
        for question in [question for question in pending if question[1].partition(":")[0] == module]:
            verdicts[question] = fatal
            pending.remove(question)
    found = [(entry, verdicts[entry.question]) for entry in entries]
    listed = [
        (entry.place_of(argument), message)
        for entry, verdict in found
        if verdict and not _is_reported(entry, verdicts)
        for argument, message in verdict
    ]
    return list(dict.fromkeys(listed))


def _is_reported(entry: UserEntry, verdicts: dict[Question, Faults]) -> bool:
    """Whether the agent's own entry has the same fault."""
    own = [
        verdict
        for (kind, target, _), verdict in verdicts.items()
        if (kind, target) == ("agent", entry.target)
    ]
    return entry.kind in REPEATED_KINDS and verdicts[entry.question] in own


def _probe(
    questions: list[Question], *, folder: Path, variables: Mapping[str, str], import_seconds: float
) -> Iterator[tuple[Question, Faults]]:
    """Verdicts of one probe process; if it did not answer all, the last one tells how it ended."""
    order = json.dumps([str(folder), variables, questions]).encode()
    with supervisor.started("governor.run_file.entry_probe", order) as (reading, process):
        answered = 0
        answers = _answers(reading, first=START_SECONDS, each=import_seconds)
        next(answers, None)  # the probe has started: from now on each entry has a limit of its own
        for question, verdict in zip(questions, answers, strict=False):
            answered += 1
            yield question, verdict
        if answered < len(questions):
            yield questions[answered], (("", _reason_of_end(process, import_seconds)),)


def _reason_of_end(process: subprocess.Popen[bytes], import_seconds: float) -> str:
    try:
        code = process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return f"the import does not end within {import_seconds:g} s"
    if code < 0:
        return f"the import crashes Python ({signal_name(-code)})"
    return f"the import ends Python with exit code {code}"


def _answers(reading: Connection, *, first: float, each: float) -> Iterator[Faults]:
    """Yields answers as they come, until the writer is gone, or one takes longer than `first` or `each` seconds."""
    limit = first
    with contextlib.suppress(EOFError):
        while reading.poll(limit):
            yield tuple((argument, message) for argument, message in json.loads(reading.recv_bytes()))
            limit = each

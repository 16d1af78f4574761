"""One task or one episode of a run file, to be tried alone: found by the names that a person gives, as the command of its conductor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from governor.episodes.rules import evaluation
from governor.episodes.text.entries import is_language_model
from governor.errors import UsageError
from governor.run_file import services as declared
from governor.run_file.load import parse
from governor.runs.assignment import Assignment
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.messages import StartSimulation, StartTasks
    from governor.run_file.model import Run
    from governor.run_file.phase_model import Phase, TaskSection

UID: Final = "try"
SHOWN: Final = 12
"""Choices that are listed in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTrial:
    """Run number `run` of a task; `timeout` is in seconds."""

    command: StartTasks
    task: str
    run: int
    timeout: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTrial:
    """Episode `index` of a phase; `timeout` is in seconds. `speaks`: a language model plays it."""

    command: StartSimulation
    index: int
    timeout: float | None
    speaks: bool


def task_of(run: Run, folder: str, task: str, *, phase: str | None, number: int | None) -> TaskTrial:
    """Raises UsageError."""
    found = [
        (index, section)
        for index, one in enumerate(run.phases)
        for section in one.tasks
        if section.id == task and phase in {None, one.name}
    ]
    if not found:
        within = "" if phase is None else f" in phase {phase!r}"
        known = [section.id for one in run.phases for section in one.tasks if phase in {None, one.name}]
        raise UsageError(f"no task {task!r}{within}{_near(task, known)}")
    if len(found) > 1:
        phases = " or ".join(f"--phase {run.phases[index].name}" for index, _ in found)
        raise UsageError(f"task {task!r} is in {len(found)} phases: add {phases}")
    [(index, section)] = found
    chosen = number or 0
    if not 0 <= chosen < section.repeat:
        raise UsageError(f"task {task!r} has {_range('run', section.repeat)}, not {chosen}")
    command = Assignment(uid=UID, run=with_ports(run), folder=folder).tasks(index, done={})
    _require_ports([spec.args for spec in command.tasks])
    return TaskTrial(command=command, task=task, run=chosen, timeout=section.timeout)


def episode_of(
    run: Run, folder: str, phase: str, *, number: int | None, states: Mapping[str, str]
) -> EpisodeTrial:
    """`states` are files with initial states, by agent; "" stands for the only one. Raises UsageError."""
    index = next((index for index, one in enumerate(run.phases) if one.name == phase), None)
    if index is None:
        raise UsageError(f"no phase {phase!r}{_near(phase, [one.name for one in run.phases])}")
    simulate = run.phases[index].simulate
    if simulate is None:
        first = run.phases[index].tasks[0].id
        raise UsageError(f"phase {phase!r} has no episodes, it has tasks: --task {first}")
    command = simulation_of(run, folder, index)
    chosen = number or 0
    count = _episodes(run.phases[index])
    if not 0 <= chosen < count:
        raise UsageError(f"phase {phase!r} has {_range('episode', count)}, not {chosen}")
    speaks = is_language_model(command.made_agents[0].entry)
    if speaks and states:
        raise UsageError(f"--state: a language model plays phase {phase!r}, which has no state")
    command = _with_states(command, states)
    return EpisodeTrial(
        command=command,
        index=chosen,
        timeout=simulate.episode_timeout,
        speaks=speaks,
    )


def simulation_of(run: Run, folder: str, index: int) -> StartSimulation:
    """The simulation of a phase that has one; it tells what environment and agents are made of."""
    assignment = Assignment(uid=UID, run=_in_one_process(with_ports(run), index), folder=folder)
    command = assignment.simulation(index)
    made = filter(None, (command.made_environment, *command.made_agents))
    _require_ports([[each.entry, each.params, [one.params for one in each.wrappers]] for each in made])
    return command


def with_ports(run: Run) -> Run:
    """The run with the ports that it names itself: a service that a person has started may be there."""
    services = run.conductors.services
    ports = {name: section.fixed_port for name, section in services.items()}
    return parse(declared.with_ports(run.raw(), ports.get), run.name) if services else run


def _require_ports(data: object) -> None:
    for _, name in declared.used(data):
        service = name.split(".")[1]
        raise UsageError(
            f"no services are started here, and service {service!r} has no port of its own: start it yourself, and say where it is, "
            f"conductors.services.{service}.port"
        )


def choices(run: Run) -> list[str]:
    """What can be tried, as options with their meaning."""
    found = []
    for phase in run.phases:
        if phase.simulate is not None:
            found.append(f"--phase {phase.name} --episode N   ({_range('episode', _episodes(phase))})")
        for task in phase.tasks:
            found.append(f"--task {task.id}{_repeats(task)}")  # noqa: PERF401  # beside the other kind
    more = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return found[:SHOWN] + more


def _repeats(task: TaskSection) -> str:
    return f" --run N   ({_range('run', task.repeat)})" if task.repeat > 1 else ""


def _in_one_process(run: Run, index: int) -> Run:
    """The run with this phase `in_process`, so that its command tells what environment and agents are made of."""
    phase = run.phases[index]
    assert phase.simulate is not None  # noqa: S101  # the caller has looked
    simulate = phase.simulate.model_copy(update={"transport": "in_process", "workers": 1})
    changed = phase.model_copy(update={"simulate": simulate})
    return run.model_copy(update={"phases": (*run.phases[:index], changed, *run.phases[index + 1 :])})


def _with_states(command: StartSimulation, states: Mapping[str, str]) -> StartSimulation:
    names = command.agents
    if "" in states and len(names) > 1:
        raise UsageError(f"the phase has {len(names)} agents: say whose state, as --state {names[0]}=FILE")
    for name in states:
        if name and name not in names:
            raise UsageError(
                f"--state: no agent {name!r} plays in phase {command.name!r}{_near(name, names)}"
            )
    made = tuple(
        msgspec.structs.replace(agent, state=states.get(name, states.get("", agent.state)))
        for name, agent in zip(names, command.made_agents, strict=True)
    )
    return msgspec.structs.replace(command, made_agents=made)


def _episodes(phase: Phase) -> int:
    """Those of its evaluations too."""
    assert phase.simulate is not None  # noqa: S101  # the callers have looked
    return evaluation.planned_episodes(phase.simulate.episodes, phase.evaluate)


def _range(what: str, count: int) -> str:
    return f"{what}s 0 to {count - 1}" if count > 1 else f"one {what}, 0"


def _near(given: str, known: list[str] | tuple[str, ...]) -> str:
    hint = suggestion(given, known)
    if hint or not known:
        return hint or "; there is none"
    listed = ", ".join(known[:SHOWN])
    return f"; there is {listed}{', ...' if len(known) > SHOWN else ''}"

"""The run as a person describes it: frozen pydantic models, one for each section of the run file.

Those that conductors get are in `governor.messages.commands`. Run files use pydantic because it reports every fault at once and gives editors a JSON schema; in messages a run is the
plain data of `Run.raw`.

A model validates its section alone; `governor.run_file.check` checks sections against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from governor.episodes.text.entries import is_language_model, is_over_http
from governor.messages import Checkpoint, DynamicTimeoutSpec, Evaluate, Until
from governor.run_file import phase_inheritance
from governor.units.fields import (
    MAX_COUNT,
    Agents,
    AnyDuration,
    Count,
    Duration,
    Entry,
    Models,
    Name,
    Params,
    ShortName,
    Size,
)
from governor.units.sections import Section
from states.plan import ConductorPlan, Deadlines, OnStall, PhasePlan, RunPlan

if TYPE_CHECKING:
    from states.amounts import Limit
    from states.plan import Part

SIMULATION = "simulation"
TASKS = "tasks"
SHORTEST_LIVENESS = 5.0
"""Seconds: with the transport's heartbeats it takes 4 until a peer reconnects."""


class EnvironmentSection(Section):
    """An environment conductor: `pool` environments of one kind. `entry` is ``gymnasium:ID`` or ``module:Class``, or the
    address of text environments, ``http://host:port/base``. Each worker steps `vector` of them together.
    """

    entry: Entry
    params: Params = {}
    pool: Annotated[int, Field(ge=1, le=1024)] = 1
    vector: Annotated[int, Field(ge=1, le=1024)] = 1


class AgentSection(Section):
    """An agent conductor: `entry` is ``module:Class``. Or a language model: ``openai:MODEL``. `state` is a file with its
    initial state, such as a checkpoint of another run; a relative path begins at the run file's folder.
    """

    entry: Entry
    params: Params = {}
    state: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class ConductorsSection(Section):
    environments: dict[ShortName, EnvironmentSection] = {}
    agents: dict[ShortName, AgentSection] = {}


class Simulate(Section):
    """`workers` episodes at a time. `max_steps` truncates an episode; `episode_timeout` is in seconds. With the transport
    ``in_process`` the simulation builds environment and agent itself: faster steps, no processes of their own. With ``ray``
    runners on the cluster build them; each gets `chunk` episodes at a time, by default as many as take about a second. In an
    environment of several players `agents` are one for all of them, one for each in their order, or {player: agent}. With
    `max_staleness` the agent acts while it learns, with weights that are at most so many versions old.
    """

    environment: str
    agents: Agents
    episodes: Count
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    max_steps: Count | None = None
    episode_timeout: Duration | None = None
    transport: Literal["conductors", "in_process", "ray"] = "conductors"
    chunk: Count | None = None
    max_staleness: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Each agent once."""
        return tuple(dict.fromkeys(self.players.values())) or tuple(self.agents)

    @property
    def players(self) -> dict[str, str]:
        """Player to agent, where the run file names players."""
        return self.agents if isinstance(self.agents, dict) else {}


class TaskSection(Section):
    """One node of the graph. `call` is ``module:attribute``; `timeout` (seconds) bounds the running time of an attempt."""

    id: Name
    call: Entry
    args: Params = {}
    depends_on: Annotated[tuple[str, ...], Field(strict=False)] = ()
    repeat: Annotated[int, Field(ge=1, le=100_000)] = 1
    timeout: Duration | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    resources: dict[str, Annotated[float, Field(ge=0)]] = {}
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0


class Phase(Section):
    """`simulate`, `tasks`, or both. The keys from `min_num` to `grace` apply to the tasks: once `min_num` of them have
    succeeded, or all but the part `over_rollout`, the others have `wait_after_min` seconds left. One runner executes
    `max_repeat_per_runner` runs of a task in a row (null: all of them). A task is killed `grace` seconds after its
    deadline. Missing keys are taken from the earlier phase that it `inherits`; a validated run has that resolved.
    """

    name: Name
    inherits: Name | None = None
    mode: Literal["train", "eval"] = "train"
    simulate: Simulate | None = None
    tasks: Annotated[tuple[TaskSection, ...], Field(strict=False)] = ()
    min_num: Count | None = None
    over_rollout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    wait_after_min: Duration | None = None
    max_repeat_per_runner: Count | None = 1
    dynamic_timeout: DynamicTimeoutSpec | None = None
    grace: AnyDuration = 1.0
    until: Annotated[tuple[Until, ...], Field(strict=False)] = ()
    evaluate: Evaluate | None = None
    checkpoint: Checkpoint | None = None
    on_failure: Literal["fail", "continue"] = "fail"

    @property
    def parts(self) -> frozenset[Part]:
        given: dict[Part, object] = {"simulation": self.simulate, "tasks": self.tasks}
        return frozenset(part for part, section in given.items() if section)


class LimitsSection(Section):
    """A run that exceeds one of them fails. `steps` and `episodes` count those of all phases, including evaluation; `tasks`
    counts the started attempts of runs of tasks. `memory` is that of its processes on the daemon's machine, `disk` that of
    its folder. After `stall_timeout` seconds without progress in a phase the run reports that (`report`), its conductors
    are replaced (`restart`), or it fails.
    """

    wall_clock: Duration | None = None
    steps: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    episodes: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    tasks: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    memory: Size | None = None
    disk: Size | None = None
    stall_timeout: Duration | None = 600.0
    on_stall: OnStall = "report"

    @property
    def amounts(self) -> list[tuple[Limit, int]]:
        """The limits that are set, except times, with their values."""
        names: tuple[Limit, ...] = ("episodes", "steps", "tasks", "memory", "disk")
        return [(name, allowed) for name in names if (allowed := getattr(self, name)) is not None]


class Restart(Section):
    """How many restarts of conductors the whole run may use."""

    conductors: Annotated[int, Field(ge=0, le=1000)] = 2


class RunDeadlines(Section):
    """Seconds: until all conductors are ready, until the result is durable, until the last process is gone; and `liveness`:
    a conductor that does not answer for so long is replaced.
    """

    start: Duration = 60.0
    finalize: Duration = 60.0
    stop: Duration = 20.0
    liveness: Annotated[Duration, Field(ge=SHORTEST_LIVENESS)] = 10.0


class Run(Section):
    """One experiment run: build one in Python, or `governor.run_file.load.load` a file. `models` are the model endpoints of
    its tasks: each runner uses one of them, ``context.model``. `resume` decides whether it is continued after the daemon
    has gone down.
    """

    name: Name
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    conductors: ConductorsSection = ConductorsSection()
    phases: Annotated[tuple[Phase, ...], Field(strict=False, min_length=1)]
    limits: LimitsSection = LimitsSection()
    restart: Restart = Restart()
    models: Models = ()
    deadlines: RunDeadlines = RunDeadlines()
    resume: Literal["continue", "restart", "never"] = "continue"

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        resolved = phase_inheritance.PhaseInheritance(data)
        if resolved.faults:
            (_, index, _), fault = resolved.faults[0]
            raise ValueError(f"phases[{index}].inherits: {fault}")
        return resolved.data

    def raw(self) -> dict[str, Any]:
        """The run as plain data (JSON, msgpack); `governor.run_file.load.parse` makes an equal run of it. Durations are seconds."""
        return self.model_dump(mode="json")

    def to_plan(self, uid: str) -> RunPlan:
        """The part of this run that the state machine needs."""
        phases = tuple(
            PhasePlan(
                name=phase.name,
                parts=phase.parts,
                on_failure=phase.on_failure,
                simulated_by=TASKS if phase.simulate and phase.simulate.transport == "ray" else SIMULATION,
            )
            for phase in self.phases
        )
        drivers = {phase.conductor_of(part) for phase in phases for part in phase.parts}
        inside = self._built_inside()
        conductors = [
            ConductorPlan(name=f"environment.{name}", kind="environment")
            for name in self.conductors.environments
            if name not in inside
        ]
        conductors += [
            ConductorPlan(name=f"agent.{name}", kind="agent")
            for name in self.conductors.agents
            if name not in inside
        ]
        if SIMULATION in drivers:
            conductors.append(ConductorPlan(name=SIMULATION, kind="simulation"))
        if TASKS in drivers:
            conductors.append(ConductorPlan(name=TASKS, kind="task"))
        return RunPlan(
            uid=uid,
            name=self.name,
            conductors=tuple(conductors),
            phases=phases,
            restarts=self.restart.conductors,
            wall_clock=self.limits.wall_clock,
            deadlines=Deadlines(
                start=self.deadlines.start, finalize=self.deadlines.finalize, stop=self.deadlines.stop
            ),
            stall_timeout=self.limits.stall_timeout,
            on_stall=self.limits.on_stall,
        )

    def _built_inside(self) -> set[str]:
        """Environments and agents that need no conductor: in every phase the simulation or the runners build them."""
        inside: set[str] = set()
        conducted: set[str] = set()
        for phase in self.phases:
            if phase.simulate is not None:
                used = conducted if phase.simulate.transport == "conductors" else inside
                used |= {phase.simulate.environment, *phase.simulate.agent_names}
        of_text = {
            name
            for section in (self.conductors.environments, self.conductors.agents)
            for name, made in section.items()
            if is_language_model(made.entry) or is_over_http(made.entry)
        }
        return (inside - conducted) | of_text

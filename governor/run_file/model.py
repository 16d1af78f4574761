"""The run as a person describes it: frozen pydantic models, one for each section of the run file.

The phases are in `phase_model`, those that conductors get in `governor.messages.commands`. Run files use pydantic because it reports every fault at once and gives editors a JSON schema; in messages a run is the
plain data of `Run.raw`.

A model validates its section alone; `governor.run_file.check` checks sections against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from governor.episodes.text.entries import is_language_model, is_over_http
from governor.messages.commands import AnyVector, AnyWrapper, Vector
from governor.run_file import phase_inheritance
from governor.run_file.matrix import Matrix
from governor.run_file.phase_model import Phase
from governor.run_file.services import ServiceSection
from governor.units.fields import (
    Duration,
    Entry,
    FilePath,
    FreeVariable,
    Labels,
    Models,
    Name,
    Params,
    SecretName,
    ShortName,
    Size,
    Word,
)
from governor.units.hooks import Hooks
from governor.units.sections import Section
from states.plan import ConductorPlan, Deadlines, OnStall, PhasePlan, RunPlan

if TYPE_CHECKING:
    from states.amounts import Limit

SIMULATION = "simulation"
TASKS = "tasks"
SERVICE: Final = "service"
SHORTEST_LIVENESS = 5.0
"""Seconds: with the transport's heartbeats it takes 4 until a peer reconnects."""


class EnvironmentSection(Section):
    """An environment conductor: a pool of environments of one kind."""

    entry: Annotated[
        Entry,
        Field(
            description="What builds it: `gymnasium:ID`, `module:Class`, or the address of text environments, "
            "`http://host:port/base`."
        ),
    ]
    params: Annotated[
        Params,
        Field(description="Keyword arguments of the constructor; of text environments their own keys."),
    ] = {}
    wrappers: Annotated[
        tuple[AnyWrapper, ...],
        Field(
            strict=False,
            max_length=64,
            description="What is built around it, in this order: `module:Class`, or a section. Not for text environments.",
        ),
    ] = ()
    pool: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="Environments in its conductor: so many workers can play at once. Counts with "
            "`transport: conductors` alone.",
        ),
    ] = 1
    vector: Annotated[
        AnyVector,
        Field(
            description="Environments that each worker steps together: their number (1 without it), or a section. Not with `transport: ray`.",
            examples=[16, {"num_envs": 64, "mode": "native"}],
        ),
    ] = Vector(num_envs=1)


class AgentSection(Section):
    """An agent conductor, or a language model."""

    entry: Annotated[
        Entry, Field(description="What builds it: `module:Class`, or `openai:MODEL` for a language model.")
    ]
    params: Annotated[
        Params, Field(description="Keyword arguments of the constructor; of a language model its own keys.")
    ] = {}
    state: Annotated[
        Annotated[str, Field(min_length=1, max_length=4096)] | None,
        Field(
            description="File with its initial state, such as a checkpoint of another run. A relative path begins at "
            "the run file's folder.",
            examples=["checkpoints/walker.best.state"],
        ),
    ] = None


class ConductorsSection(Section):
    """Environments and agents, by names that the phases use, and services."""

    environments: Annotated[
        dict[ShortName, EnvironmentSection], Field(description="Environments: name and section.")
    ] = {}
    agents: Annotated[dict[ShortName, AgentSection], Field(description="Agents: name and section.")] = {}
    services: Annotated[
        dict[ShortName, ServiceSection],
        Field(
            description="Programs that run beside the run, such as a model server: name and section.",
            examples=[{"files": {"command": ["python", "-m", "http.server", "{port}"]}}],
        ),
    ] = {}


class LimitsSection(Section):
    """A run that exceeds one of them fails."""

    wall_clock: Annotated[Duration | None, Field(description="Time that the run takes.")] = None
    steps: Annotated[
        Annotated[int, Field(ge=1, lt=2**63)] | None,
        Field(description="Steps of all phases, including evaluation."),
    ] = None
    episodes: Annotated[
        Annotated[int, Field(ge=1, lt=2**63)] | None,
        Field(description="Episodes of all phases, including evaluation."),
    ] = None
    tasks: Annotated[
        Annotated[int, Field(ge=1, lt=2**63)] | None,
        Field(description="Started attempts of runs of tasks, including those of `repeat` and `retries`."),
    ] = None
    memory: Annotated[
        Size | None, Field(description="Memory (PSS) of all processes of the run on the daemon's machine.")
    ] = None
    disk: Annotated[Size | None, Field(description="Size of the run's folder.")] = None
    stall_timeout: Annotated[
        Duration | None,
        Field(description="Time without progress in a phase after which `on_stall` applies; null: never."),
    ] = 600.0
    on_stall: Annotated[
        OnStall,
        Field(
            description="`report`: the run goes on and says so; `restart`: its conductors are replaced, within "
            "`restart.conductors`; `fail`: it fails."
        ),
    ] = "report"

    @property
    def amounts(self) -> list[tuple[Limit, int]]:
        """The limits that are set, except times, with their values."""
        names: tuple[Limit, ...] = ("episodes", "steps", "tasks", "memory", "disk")
        return [(name, allowed) for name in names if (allowed := getattr(self, name)) is not None]


class Restart(Section):
    """What the run may use to recover."""

    conductors: Annotated[
        int, Field(ge=0, le=1000, description="Restarts of conductors that the whole run may use.")
    ] = 2


class Requires(Section):
    """What of the machine a run needs to itself while it is in work."""

    cpus: Annotated[float, Field(ge=0, le=4096, description="Processors.")] = 0.0
    gpus: Annotated[
        int,
        Field(ge=0, le=1024, description="GPUs: the run sees these alone, by `CUDA_VISIBLE_DEVICES`."),
    ] = 0
    memory: Annotated[Size | None, Field(description="Memory; `limits.memory` is what bounds it.")] = None


class RunDeadlines(Section):
    """Deadlines of the run's own steps."""

    start: Annotated[
        Duration, Field(description="Until all conductors are ready, and what they build is built.")
    ] = 60.0
    finalize: Annotated[Duration, Field(description="Until the result is durable.")] = 60.0
    stop: Annotated[Duration, Field(description="Until the last process is gone.")] = 20.0
    liveness: Annotated[
        Duration,
        Field(
            ge=SHORTEST_LIVENESS,
            description="Silence after which a conductor is killed and replaced; 5 seconds at least.",
        ),
    ] = 10.0


class Run(Section):
    """One experiment run: build one in Python, or `governor.run_file.load.load` a file."""

    name: Annotated[Name, Field(description="Name of the run, for people; it need not be unique.")]
    seed: Annotated[
        int, Field(ge=0, lt=2**63, description="Seed of the episodes and of the agents' random numbers.")
    ] = 0
    conductors: Annotated[ConductorsSection, Field(description="Environments, agents and services.")] = (
        ConductorsSection()
    )
    phases: Annotated[
        tuple[Phase, ...],
        Field(strict=False, min_length=1, description="Phases, one after the other; at least one."),
    ]
    limits: Annotated[LimitsSection, Field(description="What the run may use at most.")] = LimitsSection()
    restart: Annotated[Restart, Field(description="How often its processes may be replaced.")] = Restart()
    models: Annotated[
        Models,
        Field(
            description="Model endpoints of its tasks, texts or mappings: runner i uses number i mod their count, "
            "`context.model`."
        ),
    ] = ()
    deadlines: Annotated[RunDeadlines, Field(description="Deadlines of starting, ending and answering.")] = (
        RunDeadlines()
    )
    resume: Annotated[
        Literal["continue", "restart", "never"],
        Field(
            description="After the daemon has gone down: `continue` where it was, `restart` from the beginning, or "
            "`never`: it has failed."
        ),
    ] = "continue"
    code: Annotated[
        Literal["folder", "snapshot"],
        Field(
            description="Where its code is from: the run file's `folder`, as it is when the run starts, or a `snapshot` of it, a copy that is "
            "made when the run is submitted.",
            examples=["snapshot"],
        ),
    ] = "folder"
    env: Annotated[
        dict[FreeVariable, Word],
        Field(
            max_length=1000,
            description="Environment variables of all its processes: conductors, tasks, programs, services. They are on record: keys belong into `secrets`.",
            examples=[{"HF_HOME": "/data/hf", "OMP_NUM_THREADS": 2}],
        ),
    ] = {}
    env_file: Annotated[
        FilePath | None,
        Field(
            description="File with further ones, `NAME=VALUE` in each line, read when the run starts; `env` counts more. A relative path begins at "
            "the run file's folder.",
            examples=[".env"],
        ),
    ] = None
    secrets: Annotated[
        dict[FreeVariable, SecretName],
        Field(
            max_length=100,
            description="Environment variables whose values are secrets of the daemon's machine: variable and name of the secret.",
            examples=[{"OPENAI_API_KEY": "openai"}],
        ),
    ] = {}
    priority: Annotated[
        int,
        Field(ge=-1000, le=1000, description="Of the runs that wait, those with a higher one begin first."),
    ] = 0
    requires: Annotated[
        Requires | None,
        Field(
            description="What it needs of the machine: it begins when that is free; null: it needs a slot alone.",
            examples=[{"gpus": 1, "memory": "16 GiB"}],
        ),
    ] = None
    hooks: Annotated[Hooks, Field(description="Who is told of it.")] = Hooks()
    labels: Annotated[
        Labels,
        Field(
            description="Texts by keys of yours, to find runs by: `governor list --label team=rl`.",
            examples=[{"team": "rl"}],
        ),
    ] = {}
    matrix: Annotated[
        Matrix | None, Field(description="Keys with several values: a group of runs from one file.")
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, data: Any) -> Any:
        if isinstance(
            data, dict
        ):  # a key that begins with x- is for what a person likes, such as YAML anchors
            data = {key: value for key, value in data.items() if not str(key).startswith("x-")}
        resolved = phase_inheritance.PhaseInheritance(data)
        if resolved.faults:
            (_, index, _), fault = resolved.faults[0]
            raise ValueError(f"phases[{index}].inherits: {fault}")
        return resolved.data

    @model_validator(mode="after")
    def _set_once(self) -> Self:
        if twice := self.env.keys() & self.secrets.keys():
            raise ValueError(f"{min(twice)} is set by `env` and by `secrets`: keep one of them")
        return self

    def raw(self) -> dict[str, Any]:
        """The run as plain data (JSON, msgpack); `governor.run_file.load.parse` makes an equal run of it. Durations are seconds."""
        return self.model_dump(mode="json")

    def driver_of(self, phase: int) -> str:
        """The conductor that works on the simulation of a phase."""
        simulate = self.phases[phase].simulate
        return TASKS if simulate is not None and simulate.transport == "ray" else SIMULATION

    def to_plan(self, uid: str) -> RunPlan:
        """The part of this run that the state machine needs."""
        phases = tuple(
            PhasePlan(
                name=phase.name,
                parts=phase.parts,
                on_failure="continue" if phase.policy is None else "fail",
                simulated_by=self.driver_of(index),
            )
            for index, phase in enumerate(self.phases)
        )
        drivers = {phase.conductor_of(part) for phase in phases for part in phase.parts}
        inside = self._built_inside()
        conductors = [
            ConductorPlan(name=f"{SERVICE}.{name}", kind=SERVICE) for name in self.conductors.services
        ]
        conductors += [
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

"""The phases of a run file: their episodes and their graph of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from governor.messages import Checkpoint, DynamicTimeoutSpec, Evaluate, Failures, Until
from governor.units.fields import (
    MAX_COUNT,
    Agents,
    AnyDuration,
    Count,
    Duration,
    Entry,
    FilePath,
    Info,
    Metric,
    Name,
    Params,
    VariableName,
    Word,
    Words,
)
from governor.units.sections import Section

if TYPE_CHECKING:
    from states.plan import Part


class Simulate(Section):
    """The episodes of a phase."""

    environment: Annotated[str, Field(description="Name of an environment of `conductors`.")]
    agents: Annotated[
        Agents,
        Field(
            description="Names of agents of `conductors`: one. In an environment of several players one for all, one for "
            "each in the order of `possible_agents`, or a mapping `{player: agent}`."
        ),
    ]
    episodes: Annotated[Count, Field(description="Episodes to play, without those of evaluations.")]
    workers: Annotated[int, Field(ge=1, le=1024, description="Episodes that are played at a time.")] = 1
    max_steps: Annotated[
        Count | None, Field(description="Steps after which an episode is truncated; null: no such limit.")
    ] = None
    episode_timeout: Annotated[
        Duration | None,
        Field(description="Time after which an episode ends as `timed_out`; null: no such limit."),
    ] = None
    transport: Annotated[
        Literal["conductors", "in_process", "ray"],
        Field(
            description="Where environment and agent are: `conductors`: each in a process of its own; `in_process`: in the "
            "simulation's process, with many more steps per second; `ray`: in runners on the Ray cluster, without learning."
        ),
    ] = "conductors"
    chunk: Annotated[
        Count | None,
        Field(
            description="Episodes that a runner gets at a time, with `transport: ray`; null: as many as take about a "
            "second."
        ),
    ] = None
    max_staleness: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_COUNT,
            description="Versions that the acting weights may be behind while the agent learns, with `transport: "
            "conductors`. 0: each step is learned before the next action.",
        ),
    ] = 0
    info: Annotated[
        Info,
        Field(
            description="Keys of `info` whose numbers are kept for each step, as figures of each episode and as metrics of the "
            "phase: a list, `all`, or a mapping to what an episode gets: `last`, `mean`, `sum`, `min` or `max`.",
            examples=[["success", "lives"]],
        ),
    ] = ()
    reports: Annotated[
        tuple[Metric, ...],
        Field(
            strict=False,
            description="Names that agents or environments report and that rules of the phase use. Others are on record too.",
            examples=[["loss"]],
        ),
    ] = ()

    @property
    def reductions(self) -> dict[str, str] | Literal["all"]:
        """What an episode gets of each key of `info`."""
        if isinstance(self.info, tuple):
            return dict.fromkeys(self.info, "last")
        return dict(self.info) if isinstance(self.info, dict) else self.info

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Each agent once."""
        return tuple(dict.fromkeys(self.players.values())) or tuple(self.agents)

    @property
    def players(self) -> dict[str, str]:
        """Player to agent, where the run file names players."""
        return self.agents if isinstance(self.agents, dict) else {}


class TaskSection(Section):
    """One node of the graph of tasks."""

    id: Annotated[Name, Field(description="Its name in `depends_on`, in `inputs` and in results.")]
    call: Annotated[
        Entry | None,
        Field(description="What it calls: `module:attribute`, a function or a class with `run()`."),
    ] = None
    command: Annotated[
        Words | None,
        Field(
            description="A program with its arguments, instead of `call`. `{name}` stands for a value of `args`, or one that "
            "the run knows.",
            examples=[["python", "train.py", "--lr", "{lr}"]],
        ),
    ] = None
    args: Annotated[
        Params, Field(description="Keyword arguments of the call; of a `command` values by name.")
    ] = {}
    cwd: Annotated[
        FilePath | None,
        Field(
            description="Folder that the `command` runs in; a relative path begins at the run file's folder, which null is.",
            examples=["cleanrl"],
        ),
    ] = None
    env: Annotated[
        dict[VariableName, Word],
        Field(
            description="Environment variables of the `command`, beside those of the daemon.",
            examples=[{"OMP_NUM_THREADS": 4}],
        ),
    ] = {}
    stdin: Annotated[
        FilePath | None,
        Field(
            description="File that the `command` reads as standard input; null: nothing.",
            examples=["prompts.txt"],
        ),
    ] = None
    result: Annotated[
        FilePath | None,
        Field(
            description="JSON file that the `command` writes: the task's value. null: what it writes to the file that the variable "
            "`GOVERNOR_RESULT` names, else the last line that it prints, if that is JSON.",
            examples=["metrics.json"],
        ),
    ] = None
    depends_on: Annotated[
        tuple[str, ...],
        Field(
            strict=False,
            description="Ids of tasks that must have succeeded before; it may take their results as `inputs`.",
        ),
    ] = ()
    repeat: Annotated[
        int,
        Field(
            ge=1, le=1_000_000, description="Runs of the task; its dependants get their results as a list."
        ),
    ] = 1
    timeout: Annotated[
        Duration | None,
        Field(description="Running time of one attempt, without queue and cold start; null: no limit."),
    ] = None
    retries: Annotated[
        Annotated[int, Field(ge=0, le=1000)] | None,
        Field(
            description="Attempts after the first; only runs that are missing are tried again. null: `failures.retry` of the phase.",
            examples=[1],
        ),
    ] = None
    resources: Annotated[
        dict[str, Annotated[float, Field(ge=0)]],
        Field(
            description="What its runner holds: `cpus`, `gpus`, `memory` (bytes), and custom resources of Ray."
        ),
    ] = {}
    priority: Annotated[
        int, Field(ge=-1_000_000, le=1_000_000, description="Tasks with the higher number go first.")
    ] = 0

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.call is None) == (self.command is None):
            raise ValueError("must have one of 'call' and 'command'" + (", not both" if self.call else ""))
        if self.command is None:
            for key in ("cwd", "env", "stdin", "result"):
                if getattr(self, key):
                    raise ValueError(f"{key!r} has no meaning without 'command'")
        return self


class Phase(Section):
    """One step of the run: `simulate`, `tasks`, or both. A validated run has `inherits` resolved."""

    name: Annotated[Name, Field(description="Its name in results and files; unique in the run.")]
    inherits: Annotated[
        Name | None,
        Field(description="Name of an earlier phase, whose keys count where this one lacks them."),
    ] = None
    mode: Annotated[
        Literal["train", "eval"], Field(description="`eval`: agents neither explore nor learn.")
    ] = "train"
    simulate: Annotated[Simulate | None, Field(description="The episodes of the phase.")] = None
    tasks: Annotated[
        tuple[TaskSection, ...], Field(strict=False, description="The graph of tasks of the phase.")
    ] = ()
    min_num: Annotated[
        Count | None,
        Field(description="Tasks that are enough when they have succeeded; the others are cancelled."),
    ] = None
    over_rollout: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="Part of the tasks that need not succeed: ceil(tasks * (1 - over_rollout)) are enough.",
        ),
    ] = 0.0
    wait_after_min: Annotated[
        Duration | None,
        Field(description="Time that the other tasks have once enough have succeeded; null: none."),
    ] = None
    max_repeat_per_runner: Annotated[
        Count | None,
        Field(
            description="Runs of a task that one runner executes in a row, under one `timeout`; null: all."
        ),
    ] = 1
    dynamic_timeout: Annotated[
        DynamicTimeoutSpec | None, Field(description="Bounds attempts by what earlier ones took.")
    ] = None
    grace: Annotated[
        AnyDuration, Field(description="Time between `TaskCancelled` in a task and SIGKILL.")
    ] = 1.0
    until: Annotated[
        tuple[Until, ...],
        Field(strict=False, description="Conditions: the first one that holds ends the simulation."),
    ] = ()
    evaluate: Annotated[
        Evaluate | None, Field(description="Evaluations between the training episodes; null: none.")
    ] = None
    checkpoint: Annotated[
        Checkpoint | None, Field(description="States of the agents that are kept; null: none.")
    ] = None
    failures: Annotated[
        Failures | None,
        Field(description="What the phase bears of failed episodes and tasks; null: as `on_failure` says."),
    ] = None
    on_failure: Annotated[
        Literal["fail", "continue"] | None,
        Field(
            description="Short for `failures`: `fail` is `{at_most: 0}`, `continue` is no bound; null: `fail`, without `failures`.",
            examples=["continue"],
        ),
    ] = None

    @model_validator(mode="after")
    def _has_one_policy(self) -> Self:
        if self.failures is not None and self.on_failure is not None:
            raise ValueError("'on_failure' is short for 'failures': leave one of them out")
        return self

    @property
    def policy(self) -> Failures | None:
        """What it bears; None: any failures."""
        if self.failures is not None:
            return self.failures
        return None if self.on_failure == "continue" else Failures(at_most=0)

    @property
    def parts(self) -> frozenset[Part]:
        given: dict[Part, object] = {"simulation": self.simulate, "tasks": self.tasks}
        return frozenset(part for part, section in given.items() if section)

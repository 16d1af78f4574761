"""A run to be assigned to a slot: what was submitted, and what an earlier invocation of the daemon finished of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from governor.messages import (
    Checkpoint,
    DynamicTimeoutSpec,
    Evaluate,
    Made,
    Plateau,
    StartSimulation,
    StartTasks,
    TaskSpec,
    Until,
)
from governor.run_file.load import Run, parse
from governor.run_file.model import TASKS

if TYPE_CHECKING:
    from governor.journal.tables import RunRow
    from governor.messages import EpisodeRecord, TaskRecord
    from governor.run_file.model import AgentSection, EnvironmentSection, EvaluateSection, Phase
    from states.plan import RunPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`folder` is where `entry` and `call` are imported from; `worked` and `restarts_used` are as in the plan."""

    uid: str
    run: Run
    folder: str
    first_phase: int = 0
    worked: float = 0.0
    restarts_used: int = 0
    incarnations: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, row: RunRow) -> Assignment:
        return cls(uid=row.uid, run=parse(row.spec, row.name), folder=row.folder)

    @property
    def plan(self) -> RunPlan:
        return replace(
            self.run.to_plan(self.uid),
            first_phase=self.first_phase,
            worked=self.worked,
            restarts_used=self.restarts_used,
            incarnations=self.incarnations,
        )

    def settings(self, conductor: str) -> dict[str, Any]:
        """The conductor's own section of the run file."""
        kind, _, name = conductor.partition(".")
        if kind == "environment":
            return self.run.conductors.environments[name].model_dump(mode="json")
        if kind == "agent":
            section = self.run.conductors.agents[name]
            return {**section.model_dump(mode="json"), "state": self._state_of(section)}
        return {"models": list(self.run.models)} if kind == TASKS else {}

    def simulation(self, phase: int, *, done: list[EpisodeRecord]) -> StartSimulation:
        """The command that begins the simulation of a phase."""
        chosen = self.run.phases[phase]
        if chosen.simulate is None:
            raise ValueError(f"phase {chosen.name} has no simulation")
        simulate = chosen.simulate
        conductors = self.run.conductors
        inside = simulate.transport != "conductors"
        return StartSimulation(
            phase=phase,
            name=chosen.name,
            mode=chosen.mode,
            environment=simulate.environment,
            agents=simulate.agent_names,
            players=simulate.players,
            episodes=simulate.episodes,
            workers=simulate.workers,
            max_steps=simulate.max_steps,
            episode_timeout=simulate.episode_timeout,
            seed=self.run.seed,
            **_rules(chosen),
            done=tuple(done),
            transport=simulate.transport,
            made_environment=_made(conductors.environments[simulate.environment]) if inside else None,
            made_agents=tuple(self._made_agent(name) for name in simulate.agent_names) if inside else (),
            chunk=simulate.chunk,
            vector=conductors.environments[simulate.environment].vector,
            max_staleness=simulate.max_staleness,
            build_seconds=self.run.deadlines.start,
        )

    def tasks(self, phase: int, *, done: list[TaskRecord]) -> StartTasks:
        """The command that begins the task graph of a phase."""
        chosen = self.run.phases[phase]
        is_eval = chosen.mode == "eval"
        dynamic = chosen.dynamic_timeout
        return StartTasks(
            phase=phase,
            name=chosen.name,
            tasks=tuple(TaskSpec(**task.model_dump(), is_eval=is_eval) for task in chosen.tasks),
            seed=self.run.seed,
            done=tuple(done),
            max_repeat_per_runner=chosen.max_repeat_per_runner,
            min_num=chosen.min_num,
            over_rollout=chosen.over_rollout,
            wait_after_min=chosen.wait_after_min or 0.0,
            dynamic_timeout=None if dynamic is None else DynamicTimeoutSpec(**dynamic.model_dump()),
            grace=chosen.grace,
        )

    def _made_agent(self, name: str) -> Made:
        section = self.run.conductors.agents[name]
        return Made(entry=section.entry, params=section.params, state=self._state_of(section))

    def _state_of(self, agent: AgentSection) -> str | None:
        """The file with the initial state of an agent."""
        return None if agent.state is None else str(Path(self.folder) / agent.state)

    def episodes_of(self, phase: int) -> int:
        simulate = self.run.phases[phase].simulate
        return simulate.episodes if simulate is not None else 0

    def tasks_of(self, phase: int) -> int:
        """Number of task runs: a task that repeats counts as often."""
        return sum(task.repeat for task in self.run.phases[phase].tasks)


def _made(section: EnvironmentSection) -> Made:
    return Made(entry=section.entry, params=section.params, vector=section.vector)


def _rules(phase: Phase) -> dict[str, Any]:
    """The fields of `StartSimulation` with the rules of a phase."""
    checkpoint = phase.checkpoint
    return {
        "until": tuple(Until(**each.model_dump()) for each in phase.until),
        "evaluate": None if phase.evaluate is None else _evaluate(phase.evaluate),
        "checkpoint": None if checkpoint is None else Checkpoint(**checkpoint.model_dump()),
    }


def _evaluate(section: EvaluateSection) -> Evaluate:
    plateau = section.plateau
    return Evaluate(
        **section.model_dump(exclude={"plateau"}),
        plateau=None if plateau is None else Plateau(**plateau.model_dump()),
    )

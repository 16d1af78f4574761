"""A run to be assigned to a slot: what was submitted, and what an earlier invocation of the daemon finished of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from governor.messages import ChangeTasksCommand, Made, StartSimulation, StartTasks, TaskSpec
from governor.messages.figures import PhaseFigures
from governor.run_file.load import Run, parse
from governor.run_file.model import SERVICE, TASKS
from governor.runs.liveness import USER_CODE_SECONDS
from governor.tasks.protocol.wire import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from governor.journal.runs_table import RunRow
    from governor.messages import EndedRuns, FailureKind
    from governor.run_file.model import AgentSection, Requires
    from governor.run_file.phase_model import TaskSection
    from states.plan import RunPlan

OF_PROGRAM: Final = ("command", "cwd", "env", "stdin", "result")
"""Keys of a task that runs a program."""
Owner: TypeAlias = int | str
UID_ALPHABET: Final = "abcdefghjkmnpqrstvwxyz23456789"
"""No letters that look like others, no vowels that make words."""
UID_LENGTH: Final = 8


def new_uid() -> str:
    return "".join(secrets.choice(UID_ALPHABET) for _ in range(UID_LENGTH))


def owner_of(by: Mapping[str, Any]) -> Owner | None:
    """Whose a run is that was submitted `by` this sender, for the bounds of each user: a uid, or the name of a key."""
    owner: Owner | None = by.get("uid", by.get("name"))
    return owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run that waits for a slot, without its run file: there may be many. `worked`, `restarts_used`, `failed` and `failure` are as
    in the plan. `pause`: the reason of one who has paused it, None if nobody has. `group`: that which it is a run of. `owner`: the uid of who has
    submitted it, or the name of the key, None if that is not on record.
    """

    uid: str
    first_phase: int = 0
    worked: float = 0.0
    restarts_used: int = 0
    incarnations: tuple[tuple[str, int], ...] = ()
    failed: int = 0
    failure: str = ""
    pause: str | None = None
    group: str | None = None
    owner: Owner | None = None
    priority: int = 0
    requires: Requires | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Waiting):
    """`folder` is where `entry` and `call` are imported from. `ports` are those of the run's services, `gpus` those that it holds, once it
    is in work. `variables`: what the daemon adds to the environment of all its processes.
    """

    run: Run
    folder: str
    ports: dict[str, int] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: RunRow, waiting: Waiting) -> Assignment:
        """Raises RunFileError for a run file that this version does not accept."""
        known = {each.name: getattr(waiting, each.name) for each in fields(Waiting)}
        return cls(run=parse(row.spec, row.name), folder=row.folder, **known)

    @property
    def plan(self) -> RunPlan:
        return replace(
            self.run.to_plan(self.uid),
            first_phase=self.first_phase,
            worked=self.worked,
            restarts_used=self.restarts_used,
            incarnations=self.incarnations,
            failed=self.failed,
            failure=self.failure,
        )

    def settings(self, conductor: str) -> dict[str, Any]:
        """The conductor's own section of the run file."""
        kind, _, name = conductor.partition(".")
        if kind == SERVICE:
            return self.run.conductors.services[name].model_dump(mode="json") | {"port": self.ports[name]}
        if kind == "environment":
            return self.run.conductors.environments[name].model_dump(mode="json")
        if kind == "agent":
            section = self.run.conductors.agents[name]
            return {**section.model_dump(mode="json"), "state": self._state_of(section)}
        return {"models": list(self.run.models)} if kind == TASKS else {}

    def simulation(
        self,
        phase: int,
        *,
        done: PhaseFigures | None = None,
        attempts: dict[int, tuple[FailureKind, ...]] | None = None,
        cancelled: dict[int, str] | None = None,
    ) -> StartSimulation:
        """The command that begins the simulation of a phase. Raises ValueError for one without."""
        chosen = self.run.phases[phase]
        if chosen.simulate is None:
            raise ValueError(f"phase {chosen.name} has no simulation")
        simulate = chosen.simulate
        environment = self.run.conductors.environments[simulate.environment]
        made = Made(
            entry=environment.entry,
            params=environment.params,
            wrappers=environment.wrappers,
            vector=environment.vector.num_envs,
            vector_mode=environment.vector.mode,
        )
        inside = simulate.transport != "conductors"
        return StartSimulation(
            **simulate.model_dump(exclude={"agents", "info"}),
            info=simulate.reductions,
            phase=phase,
            name=chosen.name,
            mode=chosen.mode,
            agents=simulate.agent_names,
            players=simulate.players,
            seed=self.run.seed,
            until=chosen.until,
            evaluate=chosen.evaluate,
            checkpoint=chosen.checkpoint,
            done=done if done is not None else PhaseFigures(),
            failures=chosen.policy,
            attempts=attempts or {},
            cancelled=cancelled or {},
            made_environment=made if inside else None,
            made_agents=tuple(map(self._made_agent, simulate.agent_names)) if inside else (),
            vector=environment.vector.num_envs,
            vector_mode=environment.vector.mode,
            build_seconds=self.run.deadlines.start,
            return_seconds=self.run.deadlines.start + self._seconds_until_replaced(simulate.episode_timeout),
        )

    def conductors_of(self, phase: int) -> tuple[str, ...]:
        """The conductors that play the episodes of a phase."""
        driver = self.run.driver_of(phase)
        simulate = self.run.phases[phase].simulate
        if simulate is None or simulate.transport != "conductors":
            return (driver,)
        agents = (f"agent.{name}" for name in simulate.agent_names)
        return (f"environment.{simulate.environment}", *agents, driver)

    def _seconds_until_replaced(self, episode_timeout: float | None) -> float:
        """How long a conductor whose user code holds Python's lock may take to be killed (`liveness.silence_limit`)."""
        return self.run.deadlines.liveness + max(episode_timeout or 0.0, USER_CODE_SECONDS)

    def tasks(
        self,
        phase: int,
        *,
        done: dict[str, EndedRuns],
        journal: str = "",
        failed: int = 0,
        in_a_row: int = 0,
        cancelled: dict[str, str] | None = None,
    ) -> StartTasks:
        """The command that begins the task graph of a phase. `journal` is its path, where something is done; `failed` have failed of
        that, the last ones `in_a_row`.
        """
        chosen = self.run.phases[phase]
        is_eval = chosen.mode == "eval"
        retry = {} if chosen.policy is None else chosen.policy.retries
        return StartTasks(
            phase=phase,
            name=chosen.name,
            tasks=tuple(
                TaskSpec(
                    **task.model_dump(exclude={"retries", "call", "args", *OF_PROGRAM}),
                    **_called(task, grace=chosen.grace),
                    retries=task.retries or 0,
                    retry=retry if task.retries is None else {},
                    is_eval=is_eval,
                )
                for task in chosen.tasks
            ),
            failures=chosen.policy,
            failed=failed,
            failed_in_a_row=in_a_row,
            cancelled=cancelled or {},
            seed=self.run.seed,
            done=done,
            journal=journal,
            max_repeat_per_runner=chosen.max_repeat_per_runner,
            min_num=chosen.min_num,
            over_rollout=chosen.over_rollout,
            wait_after_min=chosen.wait_after_min or 0.0,
            dynamic_timeout=chosen.dynamic_timeout,
            grace=chosen.grace,
        )

    def limits_of(self, phase: int, tasks: Collection[str]) -> ChangeTasksCommand:
        """The command that tells the limits of these tasks of a phase."""
        known = self.tasks(phase, done={}).tasks
        return ChangeTasksCommand(phase=phase, tasks=tuple(task for task in known if task.id in tasks))

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


def _called(task: TaskSection, *, grace: float) -> dict[str, Any]:
    """`call` and `args` of a task as runners get them."""
    if task.command is None:
        return {"call": task.call, "args": task.args}
    program = {name: getattr(task, name) for name in OF_PROGRAM}
    return {"call": PROGRAM, "args": {**program, "args": task.args, "grace": grace}}

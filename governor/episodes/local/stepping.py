"""Episodes in the simulation's own process: a worker holds an environment and calls the agent directly.

Rules:
1. Values, faults and their reasons, the order of act and learn, and seeds are those of `remote`: the same seed gives the
   same episodes on either transport.
2. A step is user code and about a microsecond of overhead: nothing is requested, sent or written between two steps.
3. Ended episodes are reported while the next ones are played: up to `UNACKNOWLEDGED` reports for each worker. Episodes that
   the governor has not acknowledged when this process exits are played again.
4. Short episodes are written and reported together: those that end within `REPORT_DELAY_SECONDS`.
5. User code that hangs ends the whole process: `in_process.InProcess` watches the `ExecutionContext` of each worker.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from governor import logs
from governor.episodes import spaces
from governor.episodes.conforming import first_observation, observer, stepper
from governor.episodes.entries import make_environment, one_line
from governor.episodes.local.execution_context import (
    ACT,
    BUILD,
    CLOSE,
    JOIN,
    LEARN,
    RESET,
    SAVE,
    STEP,
    record,
)
from governor.episodes.records.reports import EpisodeReports
from governor.episodes.simulation import Paused
from governor.episodes.transition import Transition
from governor.errors import ConductorError
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import Calls, LocalAgent
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import Acknowledged, EpisodeOutcome, EpisodeRecord, Made, StartSimulation

UNACKNOWLEDGED: Final = 256
REPORT_DELAY_SECONDS: Final = (0.03, 0.1)
"""For each worker of the phase, and at most."""
CLOSE_SECONDS: Final = 5.0
"""How long the `close` of an environment may take."""

log = logs.get_logger()


class NotRecorded(Exception):
    """A step could not be written; one line."""


class SeveralPlayers(Exception):
    """The environment has several players: `parallel.ParallelWorker` plays those."""

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self.environment = environment


class EpisodeSource(Protocol):
    """What a worker needs of the part whose episodes it plays; `simulation.Simulation` implements it."""

    command: StartSimulation
    stopping: bool
    resets: int

    def next_index(self, *, wait: bool = True) -> int | None: ...

    def seed_of(self, index: int) -> int: ...

    def take_restart(self) -> bool: ...

    def recorder(self, worker: int, observation: SpaceSpec, action: SpaceSpec) -> StepRecorder: ...

    def trains(self, index: int) -> bool: ...

    def may_end(self, record: EpisodeRecord) -> bool: ...

    def ended(self, *records: EpisodeRecord) -> Future[Acknowledged]: ...


class LocalEpisodeWorker:
    """One worker, in a thread of its own."""

    def __init__(
        self, simulation: EpisodeSource, context: ExecutionContext, agent: LocalAgent, made: Made
    ) -> None:
        self._simulation = simulation
        self._context = context
        self._number = context.owner
        self._agent = agent
        self._made = made
        self._environment: Any = None
        self._resets = simulation.resets
        self._calls: Calls | None = None
        self._calls_of: tuple[int, bool] | None = None
        linger = min(REPORT_DELAY_SECONDS[0] * simulation.command.workers, REPORT_DELAY_SECONDS[1])
        self.reports = EpisodeReports(simulation, linger=linger, most=UNACKNOWLEDGED)

    def play_all(self) -> None:
        """Plays until no episode is left. Raises ConductorError for what cannot be built, WrittenOff, OSError."""
        try:
            self._play_on()
        except ConductorError:
            self.reports.drain()
            raise
        self.reports.drain()

    def _play_on(self) -> None:
        simulation = self._simulation
        while True:
            if self._environment is None:
                self._build()
            index = self._next_index()
            if index is None:
                break
            if self._resets != simulation.resets:
                self._resets = simulation.resets
                self._renew()
            self._report_end(self._recorder, self._play(index))

    def _next_index(self, *, wait: bool = True) -> int | None:
        """As `Simulation.next_index`; all reports are sent before a pause."""
        try:
            return self._simulation.next_index(wait=False)
        except Paused:
            self.reports.send()
            return self._simulation.next_index(wait=wait)

    def _report_end(self, recorder: StepRecorder, ended: EpisodeRecord) -> None:
        recorder.end(outcome=ended.outcome, flush=False)
        self.reports.add(ended, recorder)

    def recorder_for(self, context: ExecutionContext) -> StepRecorder:  # noqa: ARG002  # there is only one
        """The recorder of this context; also for the watch, which may have declared the worker hung."""
        return self._recorder

    def close(self) -> None:
        """Closes the environment."""
        environment, self._environment = self._environment, None
        self._close(environment, self._context)

    def _close(self, environment: Any, context: ExecutionContext) -> None:
        """An error of its `close` has no effect on episodes: it is logged."""
        close = getattr(environment, "close", None)
        if close is not None:
            context.enter(CLOSE, seconds=CLOSE_SECONDS)
            try:
                close()
            except BaseException as error:  # noqa: BLE001  # user code, which may also exit
                log.info("environment.close_failed", reason=one_line(error))
            context.leave()

    # -- building -------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._environment = self._make(self._context)
        self._step = stepper(self._environment, self._observed, plain=self._plain)
        self._recorder = self._simulation.recorder(self._number, self._observation, self._action)

    def _make(self, context: ExecutionContext) -> Any:
        """Builds an environment, describes its spaces, and joins the agent."""
        context.enter(BUILD, seconds=self._simulation.command.build_seconds)
        environment: Any = make_environment(self._made.entry, self._made.params)
        if hasattr(environment, "possible_agents"):
            raise SeveralPlayers(environment)
        try:
            self._observation = spaces.describe(environment.observation_space, role="observation_space")
            self._action = spaces.describe(environment.action_space, role="action_space")
        except ConductorError as error:
            raise ConductorError(f"environment {self._made.entry!r}: {error.reason}") from error
        context.where = JOIN
        self._agent.join(self._number, self._observation, self._action)
        self._plain = isinstance(self._action, spaces.Discrete)
        self._observed = observer(self._observation)
        context.leave()
        return environment

    def _renew(self) -> None:
        """Builds the environment anew; one of the workers also renews the agent, if asked to."""
        self.close()
        if self._simulation.take_restart():
            self._agent.renew()
        self._build()

    def _calls_for(self, *, explore: bool) -> Calls:
        """Cached calls; evaluation episodes need others than training episodes."""
        key = self._agent.builds, explore
        if self._calls is None or self._calls_of != key:
            alone = self._simulation.command.workers == 1
            self._calls = self._agent.calls(self._number, alone=alone, explore=explore)
            self._calls_of = key
        return self._calls

    # -- one episode ----------------------------------------------------------------------------------------

    def _play(self, index: int) -> EpisodeRecord:
        """Raises WrittenOff."""
        context, recorder = self._context, self._recorder
        seed = self._simulation.seed_of(index)
        timeout = self._simulation.command.episode_timeout
        recorder.begin(episode=index, seed=seed)
        deadline = context.enter(RESET, seconds=timeout, index=index, seed=seed)
        outcome, reason = self._play_through(seed, deadline)
        return record(context, outcome, reason)

    def _play_through(self, seed: int, deadline: float) -> tuple[EpisodeOutcome, str]:
        context = self._context
        try:
            trains = self._simulation.trains(context.index or 0)
            outcome = self._loop(seed, deadline, explore=trains)
            if outcome in COMPLETE and trains:
                self._end_training_episode()
        except NotRecorded as error:
            return "failed", f"cannot record its steps: {error}"
        except BaseException as error:  # noqa: BLE001  # user code: any error is this episode's fault
            return "failed", f"{context.where}: {one_line(error)}"
        if outcome in COMPLETE and monotonic() >= deadline:
            outcome = "timed_out"
        return outcome, self._reason(outcome)

    def _end_training_episode(self) -> None:
        """Tells the agent that a training episode has ended."""
        self._context.where = SAVE
        self._agent.episode_ended()

    def _reason(self, outcome: EpisodeOutcome) -> str:
        return f"longer than {self._simulation.command.episode_timeout:g} s" if outcome == "timed_out" else ""

    def _loop(self, seed: int, deadline: float, *, explore: bool) -> EpisodeOutcome:
        """It appends to the recorder itself: one more call is a hundredth of a step."""
        simulation, context, recorder, plain = self._simulation, self._context, self._recorder, self._plain
        command = simulation.command
        act, learn, _, weights = self._calls_for(explore=explore)
        step = self._step
        rows, most = recorder.steps, recorder.most
        limit = command.max_steps or sys.maxsize
        now = monotonic
        value, steps = 0.0, 0
        observation, encoded = first_observation(self._environment, seed, self._observed)
        while True:
            context.where = ACT
            action = act(observation)
            context.where = STEP
            following, next_encoded, reward, terminated, truncated = step(action)
            if now() >= deadline:
                return "timed_out"
            context.value = value = value + reward
            context.steps = steps = steps + 1
            if steps >= limit:
                truncated = True
            encoded_action = action if plain else action.tobytes()
            rows.append((encoded, encoded_action, reward, terminated, truncated, weights.version))
            if len(rows) >= most:
                flush(recorder)
            over = terminated or truncated
            if not over and simulation.stopping:
                return "cancelled"
            if learn is not None:
                context.where = LEARN
                learn(
                    Transition(
                        observation=observation,
                        action=action,
                        reward=reward,
                        next_observation=following,
                        terminated=terminated,
                        truncated=truncated,
                    )
                )
            if over:
                return "terminated" if terminated else "truncated"
            observation, encoded = following, next_encoded


def flush(recorder: StepRecorder) -> None:
    """Writes the pending steps of a long episode. Raises NotRecorded."""
    try:
        recorder.flush()
    except OSError as error:
        raise NotRecorded(one_line(error)) from error

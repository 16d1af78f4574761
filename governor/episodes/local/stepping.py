"""Episodes in the simulation's own process: a worker holds an environment, the agent is an object beside it.

Rules:
1. The values, the faults and their reasons, the order of act and learn, the seeds are those of `worker`, `episode` and
   the hosts: the same seed gives the same episodes on either transport.
2. A step is user code and about a microsecond of ours: nothing is asked, sent or written between two steps.
3. What ended is reported while the next episodes are played: up to `UNACKNOWLEDGED` reports of each worker. Those that
   the governor has not heard of when this process dies are played again.
4. Short episodes share what writing and reporting them costs: those of `HOLD_SECONDS` go together.
5. User code that hangs takes the whole process with it: `in_process.InProcess` watches the `ExecutionContext` of each worker.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from governor import logs
from governor.episodes import spaces
from governor.episodes.conforming import first_observation, observer, stepper
from governor.episodes.entries import make_environment, one_line
from governor.episodes.local.place import ACT, BUILD, CLOSE, JOIN, LEARN, RESET, SAVE, STEP, record
from governor.episodes.records.reports import EpisodeReports
from governor.episodes.simulation import Paused
from governor.episodes.transition import Transition
from governor.errors import ConductorError
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from governor.episodes.local.kept_agent import Calls, LocalAgent
    from governor.episodes.local.place import ExecutionContext
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import Acknowledged, EpisodeOutcome, EpisodeRecord, Made, StartSimulation

UNACKNOWLEDGED: Final = 256
HOLD_SECONDS: Final = (0.03, 0.1)
"""For each worker of the phase, and at most."""
CLOSE_SECONDS: Final = 5.0
"""For an environment to be closed."""

log = logs.get_logger()


class NotRecorded(Exception):
    """A step could not be written; one line."""


class SeveralPlayers(Exception):
    """The environment that was built is one of several players: `parallel.ParallelWorker` plays those."""

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self.environment = environment


class Course(Protocol):
    """What a worker needs of the part whose episodes it plays; `simulation.Simulation` is one."""

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
    """The life of one worker, in a thread of its own."""

    def __init__(self, simulation: Course, place: ExecutionContext, agent: LocalAgent, made: Made) -> None:
        self._simulation = simulation
        self._place = place
        self._number = place.owner
        self._agent = agent
        self._made = made
        self._environment: Any = None
        self._resets = simulation.resets
        self._calls: Calls | None = None
        self._calls_of: tuple[int, bool] | None = None
        linger = min(HOLD_SECONDS[0] * simulation.command.workers, HOLD_SECONDS[1])
        self.reports = EpisodeReports(simulation, linger=linger, most=UNACKNOWLEDGED)

    def play_all(self) -> None:
        """Until there is no episode left. Raises ConductorError for what cannot be built, WrittenOff, OSError."""
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
            self._ended(self._recorder, self._play(index))

    def _next_index(self, *, wait: bool = True) -> int | None:
        """As of the simulation; nothing is held back during a pause."""
        try:
            return self._simulation.next_index(wait=False)
        except Paused:
            self.reports.send()
            return self._simulation.next_index(wait=wait)

    def _ended(self, recorder: StepRecorder, ended: EpisodeRecord) -> None:
        recorder.end(outcome=ended.outcome, flush=False)
        self.reports.add(ended, recorder)

    def recorder_at(self, place: ExecutionContext) -> StepRecorder:  # noqa: ARG002  # there is one alone
        """Of what is played there; also for who has written the worker off."""
        return self._recorder

    def close(self) -> None:
        """Gives the environment back."""
        environment, self._environment = self._environment, None
        self._close(environment, self._place)

    def _close(self, environment: Any, place: ExecutionContext) -> None:
        """What an environment says when it goes helps nobody."""
        close = getattr(environment, "close", None)
        if close is not None:
            place.enter(CLOSE, seconds=CLOSE_SECONDS)
            try:
                close()
            except BaseException as error:  # noqa: BLE001  # user code, which may also exit
                log.info("environment.close_failed", reason=one_line(error))
            place.leave()

    # -- building -------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._environment = self._make(self._place)
        self._step = stepper(self._environment, self._observed, plain=self._plain)
        self._recorder = self._simulation.recorder(self._number, self._observation, self._action)

    def _make(self, place: ExecutionContext) -> Any:
        """An environment, and what is to be known of its spaces; the agent has joined then."""
        place.enter(BUILD, seconds=self._simulation.command.build_seconds)
        environment: Any = make_environment(self._made.entry, self._made.params)
        if hasattr(environment, "possible_agents"):
            raise SeveralPlayers(environment)
        try:
            self._observation = spaces.describe(environment.observation_space, role="observation_space")
            self._action = spaces.describe(environment.action_space, role="action_space")
        except ConductorError as error:
            raise ConductorError(f"environment {self._made.entry!r}: {error.reason}") from error
        place.where = JOIN
        self._agent.join(self._number, self._observation, self._action)
        self._plain = isinstance(self._action, spaces.Discrete)
        self._observed = observer(self._observation)
        place.leave()
        return environment

    def _renew(self) -> None:
        """As the governor asked: the environment anew, and the agent too, by one of the workers."""
        self.close()
        if self._simulation.take_restart():
            self._agent.renew()
        self._build()

    def _calls_for(self, *, explore: bool) -> Calls:
        """Episodes that are evaluated run among themselves."""
        key = self._agent.lives, explore
        if self._calls is None or self._calls_of != key:
            alone = self._simulation.command.workers == 1
            self._calls = self._agent.calls(self._number, alone=alone, explore=explore)
            self._calls_of = key
        return self._calls

    # -- one episode ----------------------------------------------------------------------------------------

    def _play(self, index: int) -> EpisodeRecord:
        """Raises WrittenOff."""
        place, recorder = self._place, self._recorder
        seed = self._simulation.seed_of(index)
        timeout = self._simulation.command.episode_timeout
        recorder.begin(episode=index, seed=seed)
        deadline = place.enter(RESET, seconds=timeout, index=index, seed=seed)
        outcome, reason = self._play_through(seed, deadline)
        return record(place, outcome, reason)

    def _play_through(self, seed: int, deadline: float) -> tuple[EpisodeOutcome, str]:
        place = self._place
        try:
            trains = self._simulation.trains(place.index or 0)
            outcome = self._loop(seed, deadline, explore=trains)
            if outcome in COMPLETE and trains:
                self._trained()
        except NotRecorded as error:
            return "failed", f"cannot record its steps: {error}"
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            return "failed", f"{place.where}: {one_line(error)}"
        if outcome in COMPLETE and monotonic() >= deadline:
            outcome = "timed_out"
        return outcome, self._reason(outcome)

    def _trained(self) -> None:
        """What was learned in the episode is for good."""
        self._place.where = SAVE
        self._agent.trained()

    def _reason(self, outcome: EpisodeOutcome) -> str:
        return f"longer than {self._simulation.command.episode_timeout:g} s" if outcome == "timed_out" else ""

    def _loop(self, seed: int, deadline: float, *, explore: bool) -> EpisodeOutcome:
        """It records its rows itself: a call more is a hundredth of a step."""
        simulation, place, recorder, plain = self._simulation, self._place, self._recorder, self._plain
        command = simulation.command
        act, learn, _, acted = self._calls_for(explore=explore)
        step = self._step
        rows, most = recorder.steps, recorder.most
        limit = command.max_steps or sys.maxsize
        now = monotonic
        value, steps = 0.0, 0
        observation, seen = first_observation(self._environment, seed, self._observed)
        while True:
            place.where = ACT
            action = act(observation)
            place.where = STEP
            following, seen_next, reward, terminated, truncated = step(action)
            if now() >= deadline:
                return "timed_out"
            place.value = value = value + reward
            place.steps = steps = steps + 1
            if steps >= limit:
                truncated = True
            done = action if plain else action.tobytes()
            rows.append((seen, done, reward, terminated, truncated, acted.version))
            if len(rows) >= most:
                flush(recorder)
            over = terminated or truncated
            if not over and simulation.stopping:
                return "cancelled"
            if learn is not None:
                place.where = LEARN
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
            observation, seen = following, seen_next


def flush(recorder: StepRecorder) -> None:
    """Writes a piece of a long episode. Raises NotRecorded."""
    try:
        recorder.flush()
    except OSError as error:
        raise NotRecorded(one_line(error)) from error

"""Episodes in the simulation's own process: a worker holds an environment and calls the agent directly.

Rules:
1. Values, faults and their reasons, the order of act and learn, and seeds are those of `remote`: the same seed gives the
   same episodes on either transport.
2. A step is user code and about a microsecond of overhead: nothing is requested, sent or written between two steps.
3. Ended episodes are reported while the next ones are played: up to `UNACKNOWLEDGED` reports for each worker. Episodes that
   the governor has not acknowledged when this process exits are played again.
4. Short episodes are written and reported together: those that end within a moment (`reports`).
5. In a vector the `where` of a context is empty while another slot has its turn.
6. User code that hangs ends the whole process: `in_process.InProcess` watches the `ExecutionContext` of each worker.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from governor import logs
from governor.episodes import spaces
from governor.episodes.conforming import first_observation, stepper
from governor.episodes.context import reports
from governor.episodes.entries import make_environment
from governor.episodes.info import InfoFigures, columns_of, reader_of
from governor.episodes.local import notices, vector
from governor.episodes.local.execution_context import (
    ACT,
    BUILD,
    CLOSE,
    JOIN,
    METRICS,
    RESET,
    SAVE,
    STEP,
    NotRecorded,
)
from governor.episodes.masks import MaskReader
from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.records.reports import EpisodeReports
from governor.episodes.simulation import Paused
from governor.episodes.step_info import with_info
from governor.episodes.transition import NO_INFO, Transition
from governor.errors import ConductorError
from governor.failures import one_line, reason_of
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from governor.episodes.conforming import Stepper
    from governor.episodes.context import Context
    from governor.episodes.info import Row
    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import Calls, LocalAgent
    from governor.episodes.local.one_episode import EpisodeSource
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.transition import Episode
    from governor.messages import EpisodeOutcome, Made

UNACKNOWLEDGED: Final = 256
PATIENCE_SECONDS: Final = 0.005
"""For a report: a governor that is slow costs a twentieth of the time, not all of it."""
CLOSE_SECONDS: Final = 5.0
"""How long the `close` of an environment may take."""

Playing: TypeAlias = Generator[tuple[Any, Any], Any, tuple["EpisodeOutcome", str]]
"""An episode that is played; its result is the outcome and the reason. In a vector it yields each observation, also as it is
recorded, and is sent the action, the version of the weights, the agent's `learn` and the extras; or the agent's error is thrown into it.
"""

log = logs.get_logger()


@dataclass(slots=True, eq=False)
class LocalSlot:
    """One environment and its current episode. `resets` are those of the part when it was built; `observation` and `encoded`, as
    it is recorded, are the last ones of an episode that waits for its action. `read` makes the row of an info, where one is wanted.
    `calls` are of the agent's build and for exploration or not, as `calls_of` says; `begun` is the episode that agents were told of.
    """

    context: ExecutionContext
    environment: Any = None
    step: Stepper = field(init=False)
    recorder: StepRecorder = field(init=False)
    resets: int = 0
    episode: Playing = field(init=False)
    observation: Any = None
    encoded: Any = None
    read: Callable[[Any], Row] | None = None
    calls: Calls = field(init=False)
    calls_of: tuple[int, bool] | None = None
    begun: tuple[Episode, Mapping[str, Calls]] | None = None
    masks: MaskReader | None = None  # for an agent that takes action masks


class LocalEpisodeWorker:
    """One worker, in a thread of its own, with a slot for each of its contexts: several are a vector (`vector`)."""

    def __init__(
        self,
        simulation: EpisodeSource,
        contexts: Sequence[ExecutionContext],
        agent: LocalAgent,
        made: Made,
        *,
        user_context: Context | None = None,
    ) -> None:
        """`user_context` is for environments that take it."""
        self._simulation = simulation
        self.slots = [LocalSlot(context) for context in contexts]
        self._alone = len(contexts) == 1
        self._number = contexts[0].owner
        self._streams = simulation.command.workers * len(contexts)
        self._agent = agent
        self._made = made
        self._user_context = user_context
        self.reports = EpisodeReports(simulation, most=UNACKNOWLEDGED, patience=PATIENCE_SECONDS)

    def play_all(self) -> None:
        """Plays until no episode is left. Raises ConductorError for what cannot be built, WrittenOff, OSError."""
        try:
            self._play_on()
        except ConductorError:
            self.reports.drain()
            raise
        self.reports.drain()

    def _play_on(self) -> None:
        idle, active = list(self.slots), list[LocalSlot]()
        more = True
        while True:
            while more and idle:
                slot = idle[-1]
                if slot.environment is None:
                    self._build(slot)
                try:
                    index = self._next_index(wait=not active)
                except Paused:
                    break
                if index is None:
                    more = False
                elif self._begin(slot, index):
                    active.append(idle.pop())
            if not active:
                break
            ended = self._play_round(active)
            if ended:
                active = [slot for slot in active if slot not in ended]
                idle += ended

    def _next_index(self, *, wait: bool) -> int | None:
        """As `Simulation.next_index`; all reports are sent before a pause."""
        try:
            return self._simulation.next_index(wait=False)
        except Paused:
            self.reports.send()
            return self._simulation.next_index(wait=wait)

    def recorder_for(self, context: ExecutionContext) -> StepRecorder:
        """The recorder of this context; also for the watch, which may have declared the worker hung."""
        return next(slot.recorder for slot in self.slots if slot.context is context)

    def close(self) -> None:
        for slot in self.slots:
            self._close(slot)

    def _close(self, slot: LocalSlot) -> None:
        """An error of its `close` has no effect on episodes: it is logged."""
        environment, slot.environment = slot.environment, None
        close = getattr(environment, "close", None)
        if close is not None:
            slot.context.enter(CLOSE, seconds=CLOSE_SECONDS)
            try:
                close()
            except BaseException as error:  # noqa: BLE001  # user code, which may also exit
                log.info("environment.close_failed", reason=one_line(error))
            slot.context.leave()

    # -- building -------------------------------------------------------------------------------------------

    def _build(self, slot: LocalSlot) -> None:
        """Builds an environment, describes its spaces, and joins the agent."""
        context = slot.context
        slot.resets = self._simulation.resets
        context.enter(BUILD, seconds=self._simulation.command.build_seconds)
        environment = self._make()
        if hasattr(environment, "possible_agents"):
            raise SeveralPlayers(environment)
        slot.environment = environment
        self._observation, action = spaces.of_environment(environment, entry=self._made.entry)
        context.where = JOIN
        streams = self._streams if self._simulation.command.mode == "train" else 1
        self._agent.join(self._number, self._observation, action, learns_from=streams)
        self._encode = spaces.encoder(action)
        self._observed = spaces.observer(self._observation)
        context.leave()
        wanted = self._simulation.command.info
        slot.read = reader_of(wanted)
        context.info = InfoFigures(wanted, columns_of(wanted)) if wanted else None
        self._needs_info = self._agent.needs_info
        if self._agent.is_masked:
            slot.masks = MaskReader(action, slot.read)
            slot.read = slot.masks.read
        read = with_info(slot.read) if self._needs_info else slot.read
        copied, of = spaces.duplicator(action), self._observation
        slot.step = stepper(environment, self._observed, copied=copied, read=read, of=of)
        if slot.masks is not None:
            slot.step = slot.masks.stepper(slot.step)
        slot.recorder = self._simulation.recorder(context.number, self._observation, action)

    def _make(self) -> Any:
        return make_environment(self._made.entry, self._made.params, self._user_context, self._made.wrappers)

    def _calls_for(self, slot: LocalSlot, *, explore: bool) -> Calls:
        """Cached calls; evaluation episodes need others than training episodes."""
        key = self._agent.builds, explore
        if slot.calls_of != key:
            alone = self._simulation.command.workers == 1
            worker = slot.context.number
            slot.calls = self._agent.calls(self._number, alone=alone, explore=explore, worker=worker)
            slot.calls_of = key
        return slot.calls

    # -- one episode ----------------------------------------------------------------------------------------

    def _begin(self, slot: LocalSlot, index: int) -> bool:
        """Whether the episode waits for its first action; else it has ended."""
        if slot.resets != self._simulation.resets:
            self._close(slot)
            self._build(slot)
        seed = self._simulation.seed_of(index)
        timeout = self._simulation.command.episode_timeout
        slot.recorder.begin(episode=index, seed=seed, retries=self._simulation.retries_of(index))
        deadline = slot.context.enter(RESET, seconds=timeout, index=index, seed=seed)
        slot.episode = self._play(slot, seed, deadline)
        try:
            slot.observation, slot.encoded = next(slot.episode)
        except StopIteration as over:
            self._end(slot, *over.value)
            return False
        return True

    def _end(self, slot: LocalSlot, outcome: EpisodeOutcome, reason: str) -> None:
        """Raises WrittenOff."""
        slot.context.leave()
        reports.finish(slot.context.reported)
        self._agent.told_end(slot.context.index)
        slot.recorder.end(outcome=outcome, flush=False)
        self.reports.add(slot.context.record(outcome, reason), slot.recorder)

    def _play_round(self, active: list[LocalSlot]) -> list[LocalSlot]:
        """One step of all; the slots whose episode is over."""
        ended = []
        for slot, chosen in zip(active, vector.choose(active, self._observation), strict=True):
            try:
                if isinstance(chosen, tuple):
                    slot.observation, slot.encoded = slot.episode.send(chosen)
                else:
                    slot.context.where = ACT
                    slot.observation, slot.encoded = slot.episode.throw(chosen)
            except StopIteration as over:
                self._end(slot, *over.value)
                ended.append(slot)
        return ended

    def _play(self, slot: LocalSlot, seed: int, deadline: float) -> Playing:
        context, reason = slot.context, ""
        outcome: EpisodeOutcome = "failed"
        try:
            trains = self._simulation.trains(context.index)
            outcome = yield from self._steps(slot, seed, deadline, explore=trains)
            if outcome in COMPLETE and trains:
                self._end_training_episode(slot, outcome)
        except NotRecorded as error:
            outcome, reason = "failed", f"cannot record its steps: {error}"
        except BaseException as error:  # noqa: BLE001  # user code: any error is this episode's fault
            outcome, reason = "failed", reason_of(_raised(error)).within(context.where)
        if slot.begun is not None:
            notices.end_without_effect(slot, outcome)
        if outcome in COMPLETE and monotonic() >= deadline:
            outcome = "timed_out"
        timeout = self._simulation.command.episode_timeout
        return outcome, f"longer than {timeout:g} s" if outcome == "timed_out" else reason

    def _end_training_episode(self, slot: LocalSlot, outcome: EpisodeOutcome) -> None:
        """Tells the agent that a training episode has ended."""
        notices.end(slot, outcome)
        context = slot.context
        context.where = METRICS
        reports.add(self._agent.metrics(), of="metrics()")
        context.where = SAVE
        self._agent.episode_ended(context.index, self.reports)

    def _reset(self, slot: LocalSlot, seed: int) -> Any:
        """The first observation, and as it is recorded."""
        if (figures := slot.context.info) is not None:
            figures.begin(None)  # one that fails has none of the episode before
        observation, encoded, row = first_observation(slot.environment, seed, self._observed, slot.read)
        if figures is not None:
            figures.begin(row)
        if slot.masks is not None:
            slot.masks.note(observation)
        return observation, encoded

    def _steps(  # noqa: C901, PLR0912, PLR0915  # each is a step's own
        self, slot: LocalSlot, seed: int, deadline: float, *, explore: bool
    ) -> Generator[tuple[Any, Any], Any, EpisodeOutcome]:
        """It appends to the recorder itself: one more call is a hundredth of a step."""
        simulation, context, recorder, encode = self._simulation, slot.context, slot.recorder, self._encode
        command, alone = simulation.command, self._alone
        calls = self._calls_for(slot, explore=explore)
        act, learn, weights = calls.act, calls.learn, calls.weights
        if slot.masks is not None:
            act = slot.masks.asking(act)
        step, informed, info = slot.step, self._needs_info, NO_INFO
        worker, index = context.number, context.index
        rows, most = recorder.steps, recorder.most * recorder.columns.width
        limit = command.max_steps or sys.maxsize
        now = monotonic
        value, steps = 0.0, 0
        figures = context.info
        observation, encoded = self._reset(slot, seed)
        if calls.begin is not None:
            agents = {self._agent.name: calls}
            notices.begin(slot, agents, seed=seed, workers=self._streams, explore=explore)
        while True:
            if alone:
                context.where = ACT
                action, extras = act(observation)
                version = weights.version
            else:
                context.where = ""
                action, version, learn, extras = yield observation, encoded
            context.where = STEP
            following, next_encoded, reward, terminated, truncated, row = step(action)
            if now() >= deadline:
                return "timed_out"
            if informed:
                row, info = row
            context.value = value = value + reward
            context.steps = steps = steps + 1
            if steps >= limit:
                truncated = True
            encoded_action = action if encode is None else encode(action)
            if figures is None:
                rows += (encoded, encoded_action, reward, terminated, truncated, version)
            else:
                rows += (encoded, encoded_action, reward, terminated, truncated, version, row)
                if row.__class__ is bytes:
                    figures.row = row
                else:
                    figures.add(row)
            if len(rows) >= most:
                flush(recorder)
            over = terminated or truncated
            if not over and simulation.interrupts and simulation.interrupted(index):
                return "cancelled"
            if learn is not None:
                context.where = calls.learns_in
                learn(
                    Transition(
                        observation=observation,
                        action=action,
                        reward=reward,
                        next_observation=following,
                        terminated=terminated,
                        truncated=truncated,
                        episode=index,
                        worker=worker,
                        step=steps - 1,
                        seed=seed,
                        info=info,
                        extras=extras,
                    )
                )
            if over:
                recorder.last = next_encoded
                return "terminated" if terminated else "truncated"
            observation, encoded = following, next_encoded


def _raised(error: BaseException) -> BaseException:
    """What user code has raised: a StopIteration leaves a generator as the cause of a RuntimeError (PEP 479)."""
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) else error


def flush(recorder: StepRecorder) -> None:
    """Writes the pending steps of a long episode. Raises NotRecorded."""
    try:
        recorder.flush()
    except OSError as error:
        raise NotRecorded(one_line(error)) from error

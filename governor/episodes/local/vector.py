"""Several environments of one worker, stepped in turn; an agent with `act_many` acts for all of them at once.

Rules:
1. Each sub-environment plays its own episodes with their own seeds, identical to those without `vector`; a failing episode
   does not affect the others. (`gymnasium.vector.SyncVectorEnv` has one fault for all, and takes longer for a step.)
2. A sub-environment whose episode has ended begins its next one at once, while the others continue theirs.
3. A round is: act for all, then step each and learn from it. The agent is called in the same order as through conductors.
   The `where` of a context is empty while another sub-environment has its turn.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.conforming import first_observation, stepper
from governor.episodes.entries import one_line
from governor.episodes.local.execution_context import ACT, LEARN, RESET, SAVE, STEP, ExecutionContext, record
from governor.episodes.local.stepping import LocalEpisodeWorker, NotRecorded, flush
from governor.episodes.simulation import Paused
from governor.episodes.spaces import Discrete, storage
from governor.episodes.transition import Transition
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.conforming import Stepper
    from governor.episodes.local.local_agent import Calls, LocalAgent
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome, Made


class _Slot:
    """One sub-environment and its current episode; `encoded` is the observation as it is recorded."""

    __slots__ = (
        "context",
        "deadline",
        "encoded",
        "environment",
        "observation",
        "recorder",
        "resets",
        "step",
        "train",
    )

    def __init__(self, context: ExecutionContext) -> None:
        self.context = context
        self.environment: Any = None
        self.recorder: StepRecorder
        self.resets = -1
        self.step: Stepper
        self.observation: Any = None
        self.encoded: Any = None
        self.deadline = 0.0
        self.train = False


class LocalVectorWorker(LocalEpisodeWorker):
    """A `LocalEpisodeWorker` with a slot for each of its contexts."""

    def __init__(
        self, simulation: Simulation, contexts: Sequence[ExecutionContext], agent: LocalAgent, made: Made
    ) -> None:
        super().__init__(simulation, contexts[0], agent, made)
        self._slots = [_Slot(context) for context in contexts]
        self._limit = simulation.command.max_steps or sys.maxsize

    def _play_on(self) -> None:
        idle, active = list(self._slots), list[_Slot]()
        more = True
        while True:
            while more and idle:
                self._prepare(idle[-1])
                try:
                    index = self._next_index(wait=not active)
                except Paused:
                    break
                if index is None:
                    more = False
                elif self._begin(idle[-1], index):
                    active.append(idle.pop())
            if not active:
                break
            ended = self._play_round(active)
            if ended:
                active = [slot for slot in active if slot not in ended]
                idle += ended

    def recorder_for(self, context: ExecutionContext) -> StepRecorder:
        return next(slot.recorder for slot in self._slots if slot.context is context)

    def close(self) -> None:
        for slot in self._slots:
            environment, slot.environment = slot.environment, None
            self._close(environment, slot.context)

    def _prepare(self, slot: _Slot) -> None:
        """Builds the environment if there is none, or anew after a reset."""
        resets = self._simulation.resets
        if slot.environment is not None and slot.resets != resets:
            environment, slot.environment = slot.environment, None
            self._close(environment, slot.context)
            if self._simulation.take_restart():
                self._agent.renew()
        if slot.environment is None:
            slot.environment = self._make(slot.context)
            slot.step = stepper(slot.environment, self._observed, plain=self._plain)
            slot.recorder = self._simulation.recorder(slot.context.number, self._observation, self._action)
        slot.resets = resets

    def _begin(self, slot: _Slot, index: int) -> bool:
        """Whether the episode continues to its first step."""
        context = slot.context
        seed = self._simulation.seed_of(index)
        slot.train = self._simulation.trains(index)
        timeout = self._simulation.command.episode_timeout
        slot.recorder.begin(episode=index, seed=seed)
        slot.deadline = context.enter(RESET, seconds=timeout, index=index, seed=seed)
        try:
            slot.observation, slot.encoded = first_observation(slot.environment, seed, self._observed)
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            self._end(slot, "failed", error)
            return False
        context.where = ""
        return True

    def _end(self, slot: _Slot, outcome: EpisodeOutcome, error: BaseException | None = None) -> None:
        context = slot.context
        reason = self._reason(outcome)
        if isinstance(error, NotRecorded):
            reason = f"cannot record its steps: {error}"
        elif error is not None:
            reason = f"{context.where}: {one_line(error)}"
        self._report_end(slot.recorder, record(context, outcome, reason))

    # -- one step of all ------------------------------------------------------------------------------------

    def _play_round(self, active: list[_Slot]) -> list[_Slot]:
        """The slots whose episode is over."""
        calls = self._calls_for(explore=active[0].train)
        if calls.act_many is None:
            chosen = [self._act(calls, slot) for slot in active]
        else:
            chosen = self._act_many(calls, active)
        return self._step_all(calls, active, chosen)

    def _act(self, calls: Calls, slot: _Slot) -> tuple[Any, int]:
        """The action, or its fault, and the version of the weights."""
        context = slot.context
        context.where = ACT
        try:
            return calls.act(slot.observation), calls.weights.version
        except BaseException as error:  # noqa: BLE001  # as in `_begin`
            return error, 0
        finally:
            context.where = ""

    def _act_many(self, calls: Calls, active: list[_Slot]) -> list[tuple[Any, int]]:
        if isinstance(self._observation, Discrete):
            observations = np.array([slot.encoded for slot in active])
        else:  # what np.array makes of their arrays, in a fifth of the time
            dtype, shape = storage(self._observation)
            data = bytearray(b"".join([slot.encoded for slot in active]))
            observations = np.ndarray((len(active), *shape), dtype, data)
        for slot in active:
            slot.context.where = ACT
        actions = calls.act_many(observations)  # type: ignore[misc]  # asked for where there is one
        for slot in active:
            slot.context.where = ""
        version = calls.weights.version
        return [(action, version) for action in actions]

    def _step_all(  # noqa: C901, PLR0912  # a call for each part would cost a tenth of a step
        self, calls: Calls, active: list[_Slot], chosen: list[tuple[Any, int]]
    ) -> list[_Slot]:
        """The slots whose episode is over."""
        simulation, plain, limit, learn, now = (
            self._simulation,
            self._plain,
            self._limit,
            calls.learn,
            monotonic,
        )
        ended = []
        for slot, (action, version) in zip(active, chosen, strict=True):
            context, recorder = slot.context, slot.recorder
            outcome: EpisodeOutcome | None = None
            fault: BaseException | None = None
            try:
                if isinstance(action, BaseException):
                    context.where = ACT
                    raise action  # noqa: TRY301  # one context for what is a fault
                context.where = STEP
                following, encoded, reward, terminated, truncated = slot.step(action)
                if now() >= slot.deadline:
                    outcome = "timed_out"
                else:
                    context.value += reward
                    context.steps = steps = context.steps + 1
                    if steps >= limit:
                        truncated = True
                    encoded_action = action if plain else action.tobytes()
                    rows = recorder.steps
                    rows.append((slot.encoded, encoded_action, reward, terminated, truncated, version))
                    if len(rows) >= recorder.most:
                        flush(recorder)
                    if terminated:
                        outcome = "terminated"
                    elif truncated:
                        outcome = "truncated"
                    elif simulation.stopping:
                        outcome = "cancelled"
                    if learn is not None and outcome != "cancelled":
                        context.where = LEARN
                        learn(
                            Transition(
                                observation=slot.observation,
                                action=action,
                                reward=reward,
                                next_observation=following,
                                terminated=terminated,
                                truncated=truncated,
                            )
                        )
                    slot.observation, slot.encoded = following, encoded
                    if outcome in COMPLETE:
                        outcome = self._finish_episode(slot, outcome)
            except BaseException as error:  # noqa: BLE001  # as in `_begin`
                outcome, fault = "failed", error
            if outcome is not None:
                self._end(slot, outcome, fault)
                ended.append(slot)
            context.where = ""
        return ended

    def _finish_episode(self, slot: _Slot, outcome: EpisodeOutcome) -> EpisodeOutcome:
        if slot.train:
            slot.context.where = SAVE
            self._agent.episode_ended()
        return "timed_out" if monotonic() >= slot.deadline else outcome

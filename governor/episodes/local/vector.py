"""Several environments of one worker, stepped in turn: an agent that can acts for all of them at once (`act_many`).

Rules:
1. Each sub-environment plays episodes of its own, with their seeds: an episode is the same as without a vector, and one
   that fails is nobody else's. (`gymnasium.vector.SyncVectorEnv` has one fault for all, and takes longer for a step.)
2. A sub-environment that is done begins its next episode at once, while the others are in theirs.
3. A round is: act for all, then step each and learn from it: the agent hears what it would hear through conductors, in
   the same order. `where` of a place is empty while others have their turn.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.conforming import first_observation, stepper
from governor.episodes.entries import one_line
from governor.episodes.local.place import ACT, LEARN, RESET, SAVE, STEP, ExecutionContext, record
from governor.episodes.local.stepping import LocalEpisodeWorker, NotRecorded, flush
from governor.episodes.simulation import Paused
from governor.episodes.spaces import Discrete, storage
from governor.episodes.transition import Transition
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.conforming import Stepper
    from governor.episodes.local.kept_agent import Calls, LocalAgent
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome, Made


class _Slot:
    """One sub-environment, and the episode that it is in."""

    __slots__ = (
        "deadline",
        "environment",
        "observation",
        "place",
        "recorder",
        "resets",
        "seen",
        "step",
        "train",
    )

    def __init__(self, place: ExecutionContext) -> None:
        self.place = place
        self.environment: Any = None
        self.recorder: StepRecorder
        self.resets = -1
        self.step: Stepper
        self.observation: Any = None
        self.seen: Any = None
        self.deadline = 0.0
        self.train = False


class LocalVectorWorker(LocalEpisodeWorker):
    """A `LocalEpisodeWorker` with a slot for each of its places."""

    def __init__(
        self, simulation: Simulation, places: Sequence[ExecutionContext], agent: LocalAgent, made: Made
    ) -> None:
        super().__init__(simulation, places[0], agent, made)
        self._slots = [_Slot(place) for place in places]
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
            done = self._round(active)
            if done:
                active = [slot for slot in active if slot not in done]
                idle += done

    def recorder_at(self, place: ExecutionContext) -> StepRecorder:
        return next(slot.recorder for slot in self._slots if slot.place is place)

    def close(self) -> None:
        for slot in self._slots:
            environment, slot.environment = slot.environment, None
            self._close(environment, slot.place)

    def _prepare(self, slot: _Slot) -> None:
        """Builds what is not there, or is to be built anew."""
        resets = self._simulation.resets
        if slot.environment is not None and slot.resets != resets:
            environment, slot.environment = slot.environment, None
            self._close(environment, slot.place)
            if self._simulation.take_restart():
                self._agent.renew()
        if slot.environment is None:
            slot.environment = self._make(slot.place)
            slot.step = stepper(slot.environment, self._observed, plain=self._plain)
            slot.recorder = self._simulation.recorder(slot.place.number, self._observation, self._action)
        slot.resets = resets

    def _begin(self, slot: _Slot, index: int) -> bool:
        """Whether the episode goes on to its first step."""
        place = slot.place
        seed = self._simulation.seed_of(index)
        slot.train = self._simulation.trains(index)
        timeout = self._simulation.command.episode_timeout
        slot.recorder.begin(episode=index, seed=seed)
        slot.deadline = place.enter(RESET, seconds=timeout, index=index, seed=seed)
        try:
            slot.observation, slot.seen = first_observation(slot.environment, seed, self._observed)
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            self._end(slot, "failed", error)
            return False
        place.where = ""
        return True

    def _end(self, slot: _Slot, outcome: EpisodeOutcome, error: BaseException | None = None) -> None:
        place = slot.place
        reason = self._reason(outcome)
        if isinstance(error, NotRecorded):
            reason = f"cannot record its steps: {error}"
        elif error is not None:
            reason = f"{place.where}: {one_line(error)}"
        self._ended(slot.recorder, record(place, outcome, reason))

    # -- one step of all ------------------------------------------------------------------------------------

    def _round(self, active: list[_Slot]) -> list[_Slot]:
        """The slots whose episode is over."""
        calls = self._calls_for(explore=active[0].train)
        if calls.act_many is None:
            chosen = [self._act(calls, slot) for slot in active]
        else:
            chosen = self._act_many(calls, active)
        return self._step_all(calls, active, chosen)

    def _act(self, calls: Calls, slot: _Slot) -> tuple[Any, int]:
        """The action, or its fault, and the version of the weights."""
        place = slot.place
        place.where = ACT
        try:
            return calls.act(slot.observation), calls.acted.version
        except BaseException as error:  # noqa: BLE001  # as in `_begin`
            return error, 0
        finally:
            place.where = ""

    def _act_many(self, calls: Calls, active: list[_Slot]) -> list[tuple[Any, int]]:
        if isinstance(self._observation, Discrete):
            observations = np.array([slot.seen for slot in active])
        else:  # what np.array makes of their arrays, in a fifth of the time
            dtype, shape = storage(self._observation)
            data = bytearray(b"".join([slot.seen for slot in active]))
            observations = np.ndarray((len(active), *shape), dtype, data)
        for slot in active:
            slot.place.where = ACT
        actions = calls.act_many(observations)  # type: ignore[misc]  # asked for where there is one
        for slot in active:
            slot.place.where = ""
        version = calls.acted.version
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
        done = []
        for slot, (action, version) in zip(active, chosen, strict=True):
            place, recorder = slot.place, slot.recorder
            outcome: EpisodeOutcome | None = None
            fault: BaseException | None = None
            try:
                if isinstance(action, BaseException):
                    place.where = ACT
                    raise action  # noqa: TRY301  # one place for what is a fault
                place.where = STEP
                following, seen, reward, terminated, truncated = slot.step(action)
                if now() >= slot.deadline:
                    outcome = "timed_out"
                else:
                    place.value += reward
                    place.steps = steps = place.steps + 1
                    if steps >= limit:
                        truncated = True
                    told = action if plain else action.tobytes()
                    rows = recorder.steps
                    rows.append((slot.seen, told, reward, terminated, truncated, version))
                    if len(rows) >= recorder.most:
                        flush(recorder)
                    if terminated:
                        outcome = "terminated"
                    elif truncated:
                        outcome = "truncated"
                    elif simulation.stopping:
                        outcome = "cancelled"
                    if learn is not None and outcome != "cancelled":
                        place.where = LEARN
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
                    slot.observation, slot.seen = following, seen
                    if outcome in COMPLETE:
                        outcome = self._over(slot, outcome)
            except BaseException as error:  # noqa: BLE001  # as in `_begin`
                outcome, fault = "failed", error
            if outcome is not None:
                self._end(slot, outcome, fault)
                done.append(slot)
            place.where = ""
        return done

    def _over(self, slot: _Slot, outcome: EpisodeOutcome) -> EpisodeOutcome:
        if slot.train:
            slot.place.where = SAVE
            self._agent.trained()
        return "timed_out" if monotonic() >= slot.deadline else outcome

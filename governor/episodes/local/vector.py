"""Several environments of one worker, stepped in turn: an agent that can acts for all of them at once (`act_many`).

Rules:
1. Each sub-environment plays episodes of its own, with their seeds: an episode is the same as without a vector, and one
   that fails is nobody else's. (`gymnasium.vector.SyncVectorEnv` has one fault for all, and takes longer for a step.)
2. A sub-environment that is done begins its next episode at once, while the others are in theirs.
3. A round is: act for all, step all, learn from each. `where` of a place is empty while others have their turn.
"""

from __future__ import annotations

import sys
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.entries import one_line
from governor.episodes.local.place import ACT, LEARN, RESET, SAVE, STEP, Place, record
from governor.episodes.local.stepping import NotRecorded, Worker, first_observation
from governor.episodes.rules.conditions import COMPLETE
from governor.episodes.simulation import Paused
from governor.episodes.spaces import finite_reward
from governor.episodes.transition import Transition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.episodes.local.kept_agent import Calls, KeptAgent
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome, Made


class _Slot:
    """One sub-environment, and the episode that it is in."""

    __slots__ = ("deadline", "environment", "observation", "place", "recorder", "resets", "train")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.environment: Any = None
        self.recorder: StepRecorder
        self.resets = -1
        self.observation: Any = None
        self.deadline = 0.0
        self.train = False


class VectorWorker(Worker):
    """A `Worker` with a slot for each of its places."""

    def __init__(self, simulation: Simulation, places: Sequence[Place], agent: KeptAgent, made: Made) -> None:
        super().__init__(simulation, places[0], agent, made)
        self._slots = [_Slot(place) for place in places]
        self._alone = simulation.command.workers == 1
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
            slot.recorder = self._simulation.recorder(slot.place.number, self._observation, self._action)
        slot.resets = resets

    def _begin(self, slot: _Slot, index: int) -> bool:
        """Whether the episode goes on to its first step."""
        place = slot.place
        seed = self._simulation.seed_of(index)
        slot.train = self._simulation.trains(index)
        timeout = self._simulation.command.episode_timeout
        slot.deadline = place.enter(RESET, seconds=timeout, index=index, seed=seed)
        slot.recorder.begin(episode=index, seed=seed)
        try:
            slot.observation = first_observation(slot.environment, seed, self._observed)
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
        calls = self._agent.calls(self._number, alone=self._alone)
        actions = self._act_many(calls, active) if calls.act_many is not None else None
        version = calls.acted.version
        done = []
        for number, slot in enumerate(active):
            outcome: EpisodeOutcome | None
            try:
                if actions is not None:
                    action = self._choice(slot, actions[number])
                else:
                    action, version = self._act(calls, slot), calls.acted.version
                outcome, error = self._step(calls, slot, action, version), None
            except BaseException as fault:  # noqa: BLE001  # as in `_begin`
                outcome, error = "failed", fault
            if outcome is not None:
                self._end(slot, outcome, error)
                done.append(slot)
            slot.place.where = ""
        return done

    def _act(self, calls: Calls, slot: _Slot) -> Any:
        slot.place.where = ACT
        return self._conform(calls.act(slot.observation, explore=slot.train))

    def _act_many(self, calls: Calls, active: list[_Slot]) -> Sequence[Any]:
        """One action for each, or its fault in place of all of them. Episodes that are evaluated run among themselves."""
        for slot in active:
            slot.place.where = ACT
        observations = np.array([slot.observation for slot in active])
        try:
            actions: Any = calls.act_many(observations, explore=active[0].train)  # type: ignore[misc]  # asked for where there is one
            given = len(actions)
        except BaseException as error:  # noqa: BLE001  # as in `_begin`
            return [error] * len(active)
        finally:
            for slot in active:
                slot.place.where = ""
        if given != len(active):
            return [ValueError(f"{given} actions for {len(active)} observations")] * len(active)
        many: Sequence[Any] = actions.tolist() if self._plain and isinstance(actions, np.ndarray) else actions
        return many

    def _choice(self, slot: _Slot, action: Any) -> Any:
        slot.place.where = ACT
        if isinstance(action, BaseException):
            raise action
        return self._conform(action)

    def _step(self, calls: Calls, slot: _Slot, action: Any, version: int) -> EpisodeOutcome | None:
        """None where the episode goes on."""
        place, observation = slot.place, slot.observation
        place.where = STEP
        returned = slot.environment.step(action if self._plain else action.copy())
        try:
            following, reward, terminated, truncated, _ = returned
        except (TypeError, ValueError):
            raise ValueError("it did not return (observation, reward, terminated, truncated, info)") from None
        try:
            following = self._observed(following)
        except ValueError as error:
            raise ValueError(f"observation: {error}") from None
        if type(reward) is not float or not isfinite(reward):
            reward = finite_reward(reward)
        terminated, truncated = bool(terminated), bool(truncated)
        if monotonic() >= slot.deadline:
            return "timed_out"
        place.value += reward
        place.steps += 1
        truncated = truncated or place.steps >= self._limit
        try:
            slot.recorder.step(observation, action, reward, terminated, truncated, version)
        except OSError as error:
            raise NotRecorded(one_line(error)) from error
        over = terminated or truncated
        if not over and self._simulation.stopping:
            return "cancelled"
        slot.observation = following
        if slot.train and calls.learn is not None:
            place.where = LEARN
            calls.learn(
                Transition(
                    observation=observation,
                    action=action,
                    reward=reward,
                    next_observation=following,
                    terminated=terminated,
                    truncated=truncated,
                )
            )
        if not over:
            return None
        return self._over(slot, "terminated" if terminated else "truncated")

    def _over(self, slot: _Slot, outcome: EpisodeOutcome) -> EpisodeOutcome:
        if slot.train:
            slot.place.where = SAVE
            self._agent.trained()
        return "timed_out" if outcome in COMPLETE and monotonic() >= slot.deadline else outcome

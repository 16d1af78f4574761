"""The worker of a vector whose environments step together (`vectors`), through conductors: array by array.

Rules:
1. The episodes, and the order of all calls, are those of `local.native`; so is who can begin when, and whose fault an error is.
2. A round is two round trips, as of `rounds.VectorWorker`; what is done for each environment is done in the rounds in which its episode
   begins or ends. A reset is a third one.
3. After an error of the vector its environment is built anew, when the agent has learned of the episodes that had ended before.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.records.batch_recording import SlotRecorder
from governor.episodes.remote import frames, wire
from governor.episodes.remote.episode_worker import EpisodeWorker
from governor.episodes.remote.frames import BegunEpisode, FinishedRow
from governor.episodes.remote.worker import ConductorUnavailable
from governor.episodes.rules.evaluation import number_of
from governor.episodes.vectors.vector_environment import ARRAYS_ALONE, idle_actions
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.records.batch_recording import BatchRecorder
    from governor.episodes.records.step_buffer import StepBuffer
    from governor.episodes.remote import control
    from governor.episodes.remote.episode_attempt import EpisodeAttempt, WorkerSlot
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome


class NativeWorker(EpisodeWorker):
    """Attempts that have an `end` wait until the agent has learned it; the others play. Places are slots of this worker, from 0."""

    _recorder: BatchRecorder

    def __init__(self, simulation: Simulation, number: int) -> None:
        super().__init__(simulation, number)
        size = simulation.command.vector
        self._size, self._round = size, 0
        self._began, self._returns = np.zeros(size, np.int64), np.zeros(size)
        """The rounds before the first one of each episode, and the rewards since."""
        self._fresh = np.zeros(size, np.bool_)
        self._resets_single = self._is_broken = False
        self._has_changed = True
        """Since the last request to the agent: which attempts play."""
        self._deadline, self._cut = inf, 0
        """The first one of those that play, and after which round one of them is cut."""
        self._begun: list[EpisodeAttempt] = []
        """Since the last step; `_ready` are those of them that began without a reset."""
        self._ready: list[EpisodeAttempt] = []
        self._acted: list[EpisodeAttempt] = []
        """Those for which the agent has acted last."""
        self._without: list[int] = []
        """Slots of them without a step of which it can learn."""
        self._rewards: Any = None
        self._following: Any = None
        """What it has to learn: None for nothing, or for the observations of the round under way."""

    # -- preparation ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._is_broken:
            self._is_broken = False
            self._drop_environment(renew=True)
        self._begun, self._ready, self._acted, self._without, self._rewards = [], [], [], [], None
        self._began[:], self._returns[:] = self._round, 0.0
        super()._prepare()
        if self._informed or self._masked:
            raise ConductorUnavailable(ARRAYS_ALONE)

    def _accept(self, lease: control.Leased) -> None:
        super()._accept(lease)
        self._fresh, self._resets_single = np.zeros(self._size, np.bool_), False
        spaces = lease.observation_space, lease.action_space
        self._recorder = self.simulation.batch_recorder(self._first_slot, *spaces, self._size)
        self._slot_recorders = [SlotRecorder(self._recorder, place) for place in range(self._size)]
        self._actions = idle_actions(lease.action_space, size=self._size)
        self._idle_actions = self._actions.copy()

    def _recorder_of(self, number: int) -> Any:
        return self._slot_recorders[number - self._first_slot]

    def _recorder_at(self, slot: WorkerSlot) -> Any:  # noqa: ARG002  # of all
        return self._recorder

    def _slot_in_session(self, attempt: EpisodeAttempt) -> int:
        return attempt.slot.number

    def _place(self, attempt: EpisodeAttempt) -> int:
        return attempt.slot.number - self._first_slot

    def _new_attempt(self, slot: WorkerSlot, index: int, tries: int, began: float) -> EpisodeAttempt:
        attempt = super()._new_attempt(slot, index, tries, began)
        attempt.number = self._first_slot  # all have one stream of steps
        return attempt

    # -- a round --------------------------------------------------------------------------------------------

    def _play_round(self) -> bool:
        starting = [] if self._is_broken else self._assign_idle_slots()
        if starting:
            self._begin(starting)
        if not self._attempts:
            return bool(starting) or self._is_broken
        self._act()
        self._step()
        return True

    def _assign_idle_slots(self) -> list[EpisodeAttempt]:
        if not self._idle:
            return []
        can, waiting = sorted(self._idle, key=lambda slot: -slot.number), []
        if not self._resets_single and not all(attempt.end for attempt in self._attempts):
            first, fresh = self._first_slot, self._fresh
            waiting = [slot for slot in can if not fresh[slot.number - first]]
            can = [slot for slot in can if fresh[slot.number - first]]
        self._idle = can
        found = super()._assign_idle_slots()
        self._idle = waiting + self._idle
        return found

    def _begin(self, starting: list[EpisodeAttempt]) -> None:
        """Resets what has to be."""
        self._attempts += starting
        self._begun += starting
        self._has_changed = True
        places = [self._place(attempt) for attempt in starting]
        self._began[places], self._returns[places] = self._round, 0.0
        ready = [not self._resets_single and self._fresh[place] for place in places]
        unready = [attempt for attempt, is_ready in zip(starting, ready, strict=True) if not is_ready]
        self._ready += [attempt for attempt, is_ready in zip(starting, ready, strict=True) if is_ready]
        faults: Mapping[int, frames.RowFault] = {}
        if unready:
            answer = self._reset(unready)
            if answer is None:
                return
            faults = {fault.row: fault for fault in answer.faults}
            self._merge(answer.reported)
        self._fresh[places] = False
        for attempt, place in zip(starting, places, strict=True):
            self._end_faulty(attempt, faults.get(place))

    def _reset(self, unready: list[EpisodeAttempt]) -> frames.SteppedTogetherFrame | None:
        """None if the vector has failed."""
        channel, command = self._connected(self._environment), self.simulation.command
        indices = [attempt.index for attempt in unready]
        request = wire.ResetManyFrame(
            channel.next_number(),
            [self._place(attempt) for attempt in unready],
            [attempt.seed for attempt in unready],
            indices,
            command.name,
            None,
            number_of(indices[0], command),
        )
        playing = [attempt for attempt in self._attempts if not attempt.end]
        answer: frames.SteppedTogetherFrame | None = self._answer(
            channel, request, playing, frames.SteppedTogetherFrame
        )
        if answer is None:
            self._is_broken = True
            return None
        buffer = self._recorder.buffer
        if self._rewards is not None and self._following is None:
            self._following = buffer.observations[buffer.row].copy()
        buffer.observations[buffer.row] = answer.observations
        self._take_state(answer)
        return answer

    def _take_state(self, answer: frames.SteppedTogetherFrame) -> None:
        self._fresh, self._resets_single = answer.fresh, answer.resets_single

    # -- the agent's part -----------------------------------------------------------------------------------

    def _act(self) -> None:
        """Afterwards `_attempts` holds those with an action; episodes whose last step is learned have ended."""
        channel, buffer = self._connected(self._agent), self._recorder.buffer
        command, index = self.simulation.command, self._attempts[0].index
        self._train = self.simulation.trains(index)  # all of them: a stage of the phase follows another
        finished, begun, playing, slots = [], [], self._attempts, None
        if self._has_changed:
            self._attempts.sort(key=self._place)
            finished = [attempt for attempt in self._attempts if attempt.end]
            playing = [attempt for attempt in self._attempts if not attempt.end]
            begun = [attempt for attempt in playing if self._began[self._place(attempt)] == self._round]
            slots = [attempt.slot.number for attempt in playing]
        request = frames.ActTogetherFrame(
            channel.next_number(),
            buffer.observations[buffer.row],
            self._first_slot,
            slots,
            self._train,
            self._rewards,
            self._following,
            self._without,
            [FinishedRow(each.slot.number, each.end, each.value, each.steps) for each in finished],
            [BegunEpisode(each.slot.number, each.index, each.seed) for each in begun],
            command.name,
            number_of(index, command),
            self._take_ended(),
        )
        self._acted, self._without, self._rewards, self._following = playing, [], None, None
        self._has_changed = False
        answer = self._answer(channel, request, self._attempts, frames.ActedTogetherFrame)
        if answer is not None:
            self._take_actions(answer, finished, playing, begun)

    def _take_actions(
        self,
        answer: frames.ActedTogetherFrame,
        finished: list[EpisodeAttempt],
        playing: list[EpisodeAttempt],
        begun: list[EpisodeAttempt],
    ) -> None:
        self._version = answer.weight_version
        faults = {fault.row: fault for fault in answer.finished_faults}
        for attempt in finished:
            self._merge_into(attempt, answer.finished_reported)
            if not self._end_faulty(attempt, faults.get(attempt.slot.number)):
                self._end_in_time(attempt, attempt.regular_outcome)
        faults = {fault.row: fault for fault in answer.faults}
        for attempt in playing if faults or answer.reported else ():
            self._merge_into(attempt, answer.reported)
            self._end_faulty(attempt, faults.get(attempt.slot.number))
        self._attempts = playing = [attempt for attempt in playing if attempt.slot.number not in faults]
        self._end_waiting()
        for attempt in begun:
            if attempt.slot.number not in faults:
                attempt.begin_recording()
        if len(playing) == self._size:
            self._actions = answer.actions
        elif playing:
            self._actions = self._idle_actions.copy()
            self._actions[[self._place(attempt) for attempt in playing]] = answer.actions
        if begun or finished or faults:
            self._deadline = min([attempt.deadline for attempt in playing], default=inf)
            began = self._began[[self._place(attempt) for attempt in playing]].min(initial=self._round)
            self._cut = int(began) + self._limit

    # -- the environment's ----------------------------------------------------------------------------------

    def _step(self) -> None:
        attempts = self._attempts
        if not attempts or not self._make_room():
            return
        channel, command, ready = self._connected(self._environment), self.simulation.command, self._ready
        request = frames.StepTogetherFrame(
            channel.next_number(),
            self._actions,
            [self._place(attempt) for attempt in self._begun],
            [self._place(attempt) for attempt in ready],
            [attempt.index for attempt in ready],
            command.name,
            number_of(ready[0].index, command) if ready else 0,
        )
        self._begun, self._ready = [], []
        answer = self._answer(channel, request, attempts, frames.SteppedTogetherFrame)
        if answer is None:
            self._is_broken = True
            return
        self._take_state(answer)
        self._take_step(answer, self._recorder.buffer)

    def _take_step(self, answer: frames.SteppedTogetherFrame, buffer: StepBuffer) -> None:
        row = self._recorder.begin_step()
        buffer.actions[row], buffer.versions[row] = self._actions, self._version
        buffer.observations[row + 1], buffer.rewards[row] = answer.observations, answer.rewards
        if answer.terminated is not None:
            buffer.terminated[row], buffer.truncated[row] = answer.terminated, answer.truncated
        self._merge(answer.reported)
        if answer.faults or monotonic() >= self._deadline:
            self._end_without_step({fault.row: fault for fault in answer.faults})
        self._round += 1
        self._returns += buffer.rewards[row]
        is_cut = self._round >= self._cut
        if is_cut:
            buffer.truncated[row] |= self._round - self._began >= self._limit
        self._recorder.add(len(self._attempts))
        if self.simulation.interrupts:
            self._cancel(buffer, row)
        if self._train or self._hearing:
            self._rewards, self._following = answer.rewards, answer.following
        if answer.terminated is not None or is_cut:
            self._end_over(buffer, row)

    def _make_room(self) -> bool:
        """Whether there is room for more steps."""
        try:
            self._recorder.make_room()
        except OSError as error:
            self._end_all("failed", f"cannot record its steps: {one_line(error)}", self._attempts)
            return False
        return True

    def _end_without_step(self, faults: Mapping[int, frames.RowFault]) -> None:
        """Ends the episodes whose step came too late, or has values that are none: it does not count."""
        now = monotonic()
        if late := [attempt for attempt in self._attempts if now >= attempt.deadline]:
            self._end_all("timed_out", self._overdue_reason, late)
        for attempt in self._attempts:
            self._end_faulty(attempt, faults.get(self._place(attempt)))

    def _cancel(self, buffer: StepBuffer, row: int) -> None:
        """Those that are not over with the step in this row, and that the part was told to stop."""
        over = buffer.terminated[row] | buffer.truncated[row]
        left = [attempt for attempt in self._attempts if not over[self._place(attempt)]]
        told = [attempt for attempt in left if self.simulation.interrupted(attempt.index)]
        self._end_all("cancelled", "", told)

    def _end_over(self, buffer: StepBuffer, row: int) -> None:
        """Those whose episode is over with the step in this row."""
        terminated, truncated = buffer.terminated[row], buffer.truncated[row]
        for attempt in self._attempts:
            place = self._place(attempt)
            end = wire.TERMINATED * bool(terminated[place]) | wire.TRUNCATED * bool(truncated[place])
            if end:
                self._note(attempt)
                attempt.end, self._has_changed = end, True
                self._idle.append(attempt.slot)
                if not self._train:
                    self._end_in_time(attempt, attempt.regular_outcome)

    def _end_all(self, outcome: EpisodeOutcome, reason: str, attempts: list[EpisodeAttempt]) -> None:
        for attempt in attempts:
            self._idle.append(attempt.slot)
            self._end(attempt, outcome, reason)

    def _play_again(self, reason: str) -> None:
        for attempt in self._attempts:
            if not attempt.end:
                self._note(attempt)
        super()._play_again(reason)

    def _end(self, attempt: EpisodeAttempt, outcome: EpisodeOutcome, reason: str = "") -> None:
        self._has_changed = True
        if not attempt.end:
            self._note(attempt)
            if attempt in self._acted:
                self._without.append(attempt.slot.number)
        super()._end(attempt, outcome, reason)

    def _note(self, attempt: EpisodeAttempt) -> None:
        place = self._place(attempt)
        attempt.value, attempt.steps = float(self._returns[place]), self._round - int(self._began[place])

    def _merge(self, reported: Mapping[int, Any]) -> None:
        """What an answer of the environment has."""
        for attempt in self._attempts if reported else ():
            if not attempt.end and (sums := reported.get(self._place(attempt))):
                attempt.reported.merge(sums)

    @staticmethod
    def _merge_into(attempt: EpisodeAttempt, reported: Mapping[int, Any]) -> None:
        if sums := reported.get(attempt.slot.number):
            attempt.reported.merge(sums)

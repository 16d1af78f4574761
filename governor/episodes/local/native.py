"""The worker of a vector whose environments step together (`vector_environment`): array by array.

Rules:
1. A round is one call of `act_many` and one of `step`. Nothing is done for each environment but at the end of its episode, and for an
   agent that learns from each step.
2. An environment whose episode has ended begins the next one at once. Where single ones can be reset, it does so with the episode's
   own seed. Else the vector is seeded once, and resets them itself.
3. An episode that ends here and not in its environment (`max_steps`, a time-out, values that are none) leaves that one in the middle of
   an episode. Where single ones can't be reset, it is stepped on without record until it ends, or until none plays: then all are reset.
4. An error of the vector is the fault of all episodes under way, and it is built anew; an error of the agent is theirs, too.
"""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from governor.episodes.context import reports
from governor.episodes.local import native_agent, notices
from governor.episodes.local.execution_context import (
    ACT,
    BUILD,
    JOIN,
    RESET,
    STEP,
)
from governor.episodes.local.native_agent import Asked
from governor.episodes.local.one_episode import EpisodeSource
from governor.episodes.local.stepping import LocalEpisodeWorker
from governor.episodes.records.batch_recording import SlotRecorder
from governor.episodes.simulation import Paused
from governor.episodes.vectors.vector_environment import ARRAYS_ALONE, VectorEnvironment, idle_actions
from governor.errors import ConductorError
from governor.failures import one_line, reason_of
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from governor.episodes.context import Context
    from governor.episodes.local.execution_context import ExecutionContext
    from governor.episodes.local.local_agent import LocalAgent
    from governor.episodes.records.batch_recording import BatchRecorder
    from governor.episodes.records.step_buffer import StepBuffer
    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.vectors.vector_environment import Stepped
    from governor.messages import EpisodeOutcome, Made


class VectorSource(EpisodeSource, Protocol):
    """What such a worker needs of its part beside what others need."""

    def batch_recorder(
        self, worker: int, observation: SpaceSpec, action: SpaceSpec, slots: int
    ) -> BatchRecorder: ...


class _UnderWay(NamedTuple):
    """The number of slots that play, and how the agent is asked for their actions, first those that explore; after which round the first
    of them is cut, and when the time of the first of them is up.
    """

    number: int
    asked: list[Asked]
    cut: int
    deadline: float


class NativeWorker(LocalEpisodeWorker):
    """One worker; a slot is an environment of its vector."""

    _simulation: VectorSource
    _recorder: BatchRecorder

    def __init__(
        self,
        simulation: VectorSource,
        contexts: Sequence[ExecutionContext],
        agent: LocalAgent,
        made: Made,
        *,
        user_context: Context | None = None,
    ) -> None:
        super().__init__(simulation, contexts, agent, made, user_context=user_context)
        size = len(contexts)
        self._workers = [context.number for context in contexts]
        self._where = contexts[0].together  # type: ignore[attr-defined]  # they are `VectorContext`s
        self._vector: VectorEnvironment | None = None
        self._longest = simulation.command.max_steps or sys.maxsize // 2
        self._resets = self._round = 0
        self._playing, self._explores = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        self._began, self._returns = np.zeros(size, np.int64), np.zeros(size)
        """The rounds before the first one of each episode, and the rewards since."""
        self._deadlines = np.full(size, np.inf)
        self._under_way: _UnderWay | None = None
        """None after a change."""

    def recorder_for(self, context: ExecutionContext) -> Any:
        return SlotRecorder(self._recorder, context.number - self._workers[0])

    def close(self) -> None:
        vector, self._vector = self._vector, None
        self.slots[0].environment = vector
        self._close(self.slots[0])

    def _play_on(self) -> None:
        more = True
        while True:
            if more and self._playing_now().number < len(self.slots):
                more = self._begin_episodes()
            if self._vector is not None and self._playing_now().number:
                self._play_one_round(self._vector)
                self.reports.send_due()
            elif not more:
                return

    def _playing_now(self) -> _UnderWay:
        if self._under_way is None:
            playing = np.flatnonzero(self._playing)
            asked = []
            for explore in (True, False):
                slots = playing[self._explores[playing] == explore]
                if len(slots):
                    calls = self._calls_for(self.slots[slots[0]], explore=explore)
                    workers = [self._workers[slot] for slot in slots.tolist()]
                    asked.append(Asked(slots, workers, calls, len(slots) == len(self.slots)))
            first = int(self._began[playing].min(initial=self._round))
            self._under_way = _UnderWay(
                len(playing),
                asked,
                first + self._longest,
                float(self._deadlines[playing].min(initial=np.inf)),
            )
        return self._under_way

    # -- beginnings -----------------------------------------------------------------------------------------

    def _begin_episodes(self) -> bool:
        """Begins one in each environment that can; whether there may be more."""
        idle = not self._playing.any()
        vector = self._vector
        if vector is None or (idle and self._resets != self._simulation.resets):
            vector = self._build_vector()
        elif self._resets != self._simulation.resets:
            return True  # once those under way have ended
        can = ~self._playing if idle or vector.resets_single else ~self._playing & vector.fresh
        chosen: dict[int, int] = {}
        more = True
        for slot in np.flatnonzero(can).tolist():
            try:
                index = self._next_index(wait=idle and not chosen)
            except Paused:
                break
            if index is None:
                more = False
                break
            chosen[slot] = index
        if chosen:
            self._begin_chosen(vector, chosen)
        return more

    def _begin_chosen(self, vector: VectorEnvironment, chosen: Mapping[int, int]) -> None:
        """Episodes by slot."""
        simulation, seeds = self._simulation, {}
        for slot, index in chosen.items():
            seed = seeds[slot] = simulation.seed_of(index)
            context = self.slots[slot].context
            seconds = simulation.command.episode_timeout
            self._deadlines[slot] = context.enter(RESET, seconds=seconds, index=index, seed=seed)
            self._recorder.begin(slot, episode=index, seed=seed, retries=simulation.retries_of(index))
        begins = [*chosen]
        self._playing[begins], self._began[begins], self._returns[begins] = True, self._round, 0.0
        self._explores[begins] = [simulation.trains(index) for index in chosen.values()]
        self._under_way = None
        unready = {
            slot: seed for slot, seed in seeds.items() if vector.resets_single or not vector.fresh[slot]
        }
        faults: Mapping[int, BaseException] = {}
        try:
            faults = vector.reset(unready, self._recorder.buffer) if unready else {}
        except BaseException as error:  # noqa: BLE001  # user code
            self._fail_all(error)
            return
        vector.begin(begins)
        for slot in begins:
            if slot in faults:
                self._end_failed(slot, faults[slot], RESET)
            else:
                self._tell_begin(slot, seeds[slot])
        self._where[0] = ""

    def _tell_begin(self, slot: int, seed: int) -> None:
        explore = bool(self._explores[slot])
        calls = self._calls_for(self.slots[slot], explore=explore)
        if calls.begin is None:
            return
        agents = {self._agent.name: calls}
        try:
            notices.begin(self.slots[slot], agents, seed=seed, workers=self._streams, explore=explore)
        except BaseException as error:  # noqa: BLE001  # user code: this episode's fault
            self._end_failed(slot, error, self.slots[slot].context.where)

    def _build_vector(self) -> VectorEnvironment:
        """Builds it, describes its spaces, and joins the agent. Raises ConductorError."""
        context, command = self.slots[0].context, self._simulation.command
        if self._vector is not None:
            self.close()
        self._resets = self._simulation.resets
        context.enter(BUILD, seconds=command.build_seconds)
        vector = VectorEnvironment(self._made, self._user_context)
        context.where = JOIN
        streams = self._streams if command.mode == "train" else 1
        self._agent.join(self._number, vector.observation, vector.action, learns_from=streams)
        context.leave()
        if self._agent.needs_info or self._agent.is_masked or command.info:
            raise ConductorError(ARRAYS_ALONE)
        self._vector = vector
        self._recorder = self._simulation.batch_recorder(
            self._workers[0], vector.observation, vector.action, vector.size
        )
        self._idle_actions = idle_actions(vector.action, size=vector.size)
        return vector

    # -- a round --------------------------------------------------------------------------------------------

    def _play_one_round(self, vector: VectorEnvironment) -> None:
        recorder, buffer, where = self._recorder, self._recorder.buffer, self._where
        if buffer.row == buffer.rounds and not self._write_all():
            return
        row, under_way = recorder.begin_step(), self._playing_now()
        where[0] = ACT
        try:
            extras = native_agent.act(buffer, under_way.asked, idle=self._idle_actions)
        except BaseException as error:  # noqa: BLE001  # user code: the fault of all episodes
            self._end_all(error)
            return
        where[0] = STEP
        try:
            stepped = vector.step(buffer.actions[row].copy(), buffer)
        except BaseException as error:  # noqa: BLE001  # as above
            self._fail_all(error)
            return
        where[0] = ""
        if stepped.faults or monotonic() >= under_way.deadline:
            self._end_faulty(stepped)
            under_way = self._playing_now()
        self._round += 1
        self._returns += buffer.rewards[row]
        is_cut = self._round >= under_way.cut
        if is_cut:
            buffer.truncated[row] |= self._round - self._began >= self._longest
        recorder.add(under_way.number)
        if self._simulation.interrupts:
            self._cancel(buffer, row)
        if extras:
            self._learn(buffer, row, stepped.following, extras)
        if stepped.has_ended or is_cut:
            self._end_over(buffer, row)

    def _write_all(self) -> bool:
        """Whether there is room for more steps."""
        try:
            self._recorder.make_room()
        except OSError as error:
            for slot in self._slots_that_play():
                self._end_slot(slot, "failed", f"cannot record its steps: {one_line(error)}")
            return False
        return True

    def _slots_that_play(self) -> list[int]:
        found: list[int] = np.flatnonzero(self._playing).tolist()
        return found

    def _end_faulty(self, stepped: Stepped) -> None:
        """Ends the episodes whose step came too late, or has values that are none: it does not count."""
        for slot in np.flatnonzero(self._playing & (monotonic() >= self._deadlines)).tolist():
            self._end_slot(slot, "timed_out", "")
        for slot, fault in stepped.faults.items():
            if self._playing[slot]:
                self._end_failed(slot, fault, STEP)

    def _learn(
        self, buffer: StepBuffer, row: int, following: NDArray[Any], extras: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """From the steps of those that have `extras`, and still play."""
        for slot in [slot for slot in extras if self._playing[slot]]:
            calls, context = self._calls_for(self.slots[slot], explore=True), self.slots[slot].context
            if calls.learn is None:
                return
            context.where = calls.learns_in
            try:
                calls.learn(
                    native_agent.transition(
                        buffer,
                        (row, slot),
                        following[slot],
                        context,
                        step=self._round - int(self._began[slot]) - 1,
                        extras=extras[slot],
                    )
                )
            except BaseException as error:  # noqa: BLE001  # user code: this episode's fault
                self._end_failed(slot, error, context.where)

    # -- ends -----------------------------------------------------------------------------------------------

    def _end_over(self, buffer: StepBuffer, row: int) -> None:
        """Those whose episode is over with the step in this row."""
        terminated = buffer.terminated[row]
        over = np.flatnonzero(self._playing & (terminated | buffer.truncated[row]))
        for slot, is_terminated in zip(over.tolist(), terminated[over].tolist(), strict=True):
            self._end_complete(slot, "terminated" if is_terminated else "truncated")

    def _cancel(self, buffer: StepBuffer, row: int) -> None:
        """Those whose episode is not over with it, and that the part was told to stop."""
        over = buffer.terminated[row] | buffer.truncated[row]
        for slot in np.flatnonzero(self._playing & ~over).tolist():
            if self._simulation.interrupted(self.slots[slot].context.index):
                self._end_slot(slot, "cancelled", "")

    def _end_complete(self, slot: int, outcome: EpisodeOutcome) -> None:
        """Raises WrittenOff."""
        one, ended, reason = self.slots[slot], outcome, ""
        if self._explores[slot]:
            self._note(slot)
            try:
                self._end_training_episode(one, outcome)
            except BaseException as error:  # noqa: BLE001  # user code: any error is this episode's fault
                ended, reason = "failed", reason_of(error).within(one.context.where)
        if ended in COMPLETE and monotonic() >= self._deadlines[slot]:
            ended = "timed_out"
        self._end_slot(slot, ended, reason)

    def _end_failed(self, slot: int, error: BaseException, where: str) -> None:
        self._end_slot(slot, "failed", reason_of(error).within(where))

    def _end_all(self, error: BaseException) -> None:
        where = self._where[0]
        for slot in self._slots_that_play():
            self._end_failed(slot, error, where)

    def _fail_all(self, error: BaseException) -> None:
        """The vector has raised this."""
        self._end_all(error)
        self.close()

    def _end_slot(self, slot: int, outcome: EpisodeOutcome, reason: str) -> None:
        """Raises WrittenOff."""
        one, command = self.slots[slot], self._simulation.command
        context = one.context
        self._note(slot)
        self._playing[slot], self._under_way = False, None
        if one.begun is not None:
            notices.end_without_effect(one, outcome)
        if outcome == "timed_out":
            reason = f"longer than {command.episode_timeout:g} s"
        context.leave()
        reports.finish(context.reported)
        self._agent.told_end(context.index)
        self._recorder.end(slot, outcome=outcome)
        self.reports.add(context.record(outcome, reason), self._recorder, more=True)

    def _note(self, slot: int) -> None:
        context = self.slots[slot].context
        context.value, context.steps = float(self._returns[slot]), self._round - int(self._began[slot])

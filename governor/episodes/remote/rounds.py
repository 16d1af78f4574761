"""A worker whose environment is a vector: each slot plays episodes of its own, one message carries all that are due.

Rules:
1. The episodes, their order and the order of act and learn are those of `vector`, in process: a slot that is done begins
   its next episode at once, the one that ended last first. Only where an end may be that of the phase it waits for it.
2. A round is two round trips: the agent learns from the last step of each slot and acts for those that go on, then the
   environment steps them. Resets are a third one, in rounds in which an episode begins.
3. A fault is one episode's alone. When a conductor dies, or an environment of the vector hangs, the episodes of the
   others are played again, each in its slot: a death counts as a try, a neighbour's hang does not. Past a deadline and
   `SETTLE_SECONDS` what does not answer hangs if it is in the code of that very slot; else others have their time.
4. An episode in train mode has ended when the agent has learned its last step.
"""

from __future__ import annotations

import sys
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from governor.episodes.entries import one_line
from governor.episodes.remote import control, wire
from governor.episodes.remote.line import Interrupted, Overdue, PeerLost
from governor.episodes.remote.plays import Play, Slot
from governor.episodes.remote.worker import (
    SETTLE_SECONDS,
    TRIES,
    NoPlace,
    OutOfReach,
    RemoteEpisodeWorker,
    Stopped,
    live,
)
from governor.episodes.simulation import Paused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.remote.line import RequestChannel
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome

LINGER_SECONDS: Final = 0.05
"""Each slot has a recorder of its own: what ends together is one write only if it waits for more."""


def play(simulation: Simulation, number: int) -> None:
    """The life of worker `number`, with a vector or without."""
    kind = RemoteEpisodeWorker if simulation.command.vector == 1 else RemoteVectorWorker
    live(kind(simulation, number))


class _Lost(Exception):
    """The round came to no end: what is still in play is played again. The line has been seen to."""

    def __init__(self, *, dead: bool) -> None:
        self.dead = dead
        super().__init__()


class RemoteVectorWorker(RemoteEpisodeWorker):
    """A `RemoteEpisodeWorker` with a slot for each environment of the vector; `_plays` are in the order in which the agent acts."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        super().__init__(simulation, number, linger=LINGER_SECONDS)
        command = simulation.command
        self._first = number * command.vector
        self._slots = [Slot(self._first + place) for place in range(command.vector)]
        self._idle = list(self._slots)
        self._plays: list[Play] = []
        self._late: list[tuple[Play, EpisodeOutcome, str]] = []
        self._more = True
        self._version = 0
        self._train = False
        self._limit = command.max_steps or sys.maxsize

    def play_all(self) -> None:
        """As `RemoteEpisodeWorker.play_all`."""
        while True:
            if not self._plays:
                self._prepare()
            try:
                self._begin_all()
                if not self._plays:
                    break
                self._act()
                self._step()
            except _Lost as lost:
                self._play_again(dead=lost.dead)
            self._reports.send_due()
        self._reports.drain()

    def _prepare(self) -> None:
        try:
            self._connect()
        except (OutOfReach, NoPlace, Stopped) as error:
            outcome: EpisodeOutcome = "cancelled" if isinstance(error, Stopped) else "crashed"
            for slot in self._slots:
                for index, tries in slot.again:
                    play = self._play_of(slot, index, tries)
                    self._end(play, outcome, "" if outcome == "cancelled" else str(error))
            raise
        self._obey_resets()
        for slot in self._slots:
            slot.recorder = self._recorder_of(slot.number)

    # -- beginning ------------------------------------------------------------------------------------------

    def _begin_all(self) -> None:
        """Gives every idle slot an episode, as far as there are some, and resets their environments."""
        while (begun := self._begun()) and not self._reset(begun):
            pass

    def _begun(self) -> list[Play]:
        found: list[Play] = []
        if self._plays and self._resets != self.simulation.resets:
            return found  # when all have ended, the environment is built anew
        if self._would_end():
            return found
        while self._idle:
            slot = next((slot for slot in self._idle if slot.again), self._idle[-1])
            if slot.again:
                index, tries = slot.again.pop(0)
            else:
                fresh = self._next_fresh(wait=not self._plays and not found) if self._more else None
                if fresh is None:
                    break
                index, tries = fresh, 0
            self._idle.remove(slot)
            found.append(self._play_of(slot, index, tries))
        return found

    def _would_end(self) -> bool:
        """Whether the phase will be, when what has taken its last step has ended."""
        if not self.simulation.command.until:
            return False
        ended = [play.record(_well(play), "") for play in self._plays if play.end]
        return bool(ended) and self.simulation.would_end(ended)

    def _next_fresh(self, *, wait: bool) -> int | None:
        if wait:
            index = self._next_index()
        else:
            try:
                index = self.simulation.next_index(wait=False)
            except Paused:
                return None
        self._more = index is not None
        return index

    def _play_of(self, slot: Slot, index: int, tries: int) -> Play:
        seed = self.simulation.seed_of(index)
        timeout = self.simulation.command.episode_timeout
        return Play(slot, index, seed=seed, tries=tries, timeout=timeout)

    def _reset(self, begun: list[Play]) -> bool:
        """Whether all of them are ready for their first step."""
        self._plays += begun
        line = self._line_to(self._environment)
        slots = [play.slot.number - self._first for play in begun]
        seeds, indices = [play.seed for play in begun], [play.index for play in begun]
        request = wire.ResetManyFrame(line.next(), slots, seeds, indices)
        answer = self._answer(line, request, begun, wire.SteppedManyFrame)
        if answer is None:
            return False
        faults = {fault.row: fault for fault in answer.faults}
        for row, (play, observation) in enumerate(zip(begun, self._seen(answer), strict=True)):
            play.observation = observation
            if row in faults:
                self._free(play)
                self._end(play, "failed", f"{faults[row].where}: {faults[row].reason}")
        return not faults

    # -- the agent's part of a round ------------------------------------------------------------------------

    def _act(self) -> None:
        """Afterwards those that have an action are in play; what is learned to its end has ended."""
        plays, line = self._plays, self._line_to(self._agent)
        if plays:
            self._train = self.simulation.trains(
                plays[0].index
            )  # all of them: a stage of the phase follows another
        request = wire.ActManyFrame(
            line.next(),
            [play.slot.number for play in plays],
            [play.kind for play in plays],
            np.array([play.observation for play in plays]),
            [play.reward for play in plays],
            [play.end for play in plays],
            self._train,
            [play.index for play in plays if play.kind == wire.FIRST],
        )
        answer = self._answer(line, request, plays, wire.ActedManyFrame)
        if answer is None:
            return
        faults = {fault.row: fault for fault in answer.faults}
        actions = answer.actions.tolist() if self._plain_action else answer.actions
        acting = dict(zip(answer.rows, actions, strict=True))
        for row, play in enumerate(plays):
            if row in faults:
                if play.kind != wire.LAST:
                    self._free(play)
                self._end(play, "failed", f"{faults[row].where}: {faults[row].reason}")
            elif play.kind == wire.LAST:
                self._end_well(play)
        self._plays = [plays[row] for row in acting]
        self._version = answer.weight_version
        self._end_late()
        for row, action in acting.items():
            play = plays[row]
            play.action = action
            if not play.recorded:
                self._record_begin(play)

    # -- the environment's ----------------------------------------------------------------------------------

    def _step(self) -> None:
        plays = self._plays
        if not plays:
            return
        line = self._line_to(self._environment)
        slots = [play.slot.number - self._first for play in plays]
        request = wire.StepManyFrame(line.next(), slots, np.array([play.action for play in plays]))
        answer = self._answer(line, request, plays, wire.SteppedManyFrame)
        if answer is None:
            return
        faults = {fault.row: fault for fault in answer.faults}
        told = zip(plays, self._seen(answer), answer.rewards, answer.ends, strict=True)
        now = monotonic()
        going = []
        for row, (play, following, reward, end) in enumerate(told):
            if row in faults:
                self._free(play)
                self._end(play, "failed", f"{faults[row].where}: {faults[row].reason}")
            elif now >= play.deadline:
                self._free(play)
                self._end(play, "timed_out", self._overdue)
            elif self._stepped(play, following, reward, end):
                going.append(play)
        self._plays = going

    def _stepped(self, play: Play, following: Any, reward: float, end: int) -> bool:
        """Whether it is still in play: it goes on, or the agent has to learn its last step."""
        play.value += reward
        play.steps += 1
        if play.steps >= self._limit:
            end |= wire.TRUNCATED
        terminated, truncated = bool(end & wire.TERMINATED), bool(end & wire.TRUNCATED)
        values = (play.observation, play.action, reward, terminated, truncated, self._version)
        play.observation, play.reward, play.end = following, reward, end
        try:
            play.slot.recorder.step(*values)
        except OSError as error:
            self._free(play)
            self._end(play, "failed", f"cannot record its steps: {one_line(error)}")
            return False
        if not end:
            if self.simulation.stopping:
                self._free(play)
                self._end(play, "cancelled")
                return False
            return True
        self._free(play)
        if not self._train:
            self._end_well(play)
        return self._train

    # -- ends -----------------------------------------------------------------------------------------------

    def _free(self, play: Play) -> None:
        """Its slot may begin another episode."""
        self._idle.append(play.slot)

    def _end_well(self, play: Play) -> None:
        if monotonic() >= play.deadline:
            self._end(play, "timed_out", self._overdue)
        else:
            self._end(play, _well(play))

    def _end(self, play: Play, outcome: EpisodeOutcome, reason: str = "") -> None:
        """It is out of play; told later where the episode before it in its slot has not ended yet."""
        self._plays = [other for other in self._plays if other is not play]
        slot = play.slot
        if not play.recorded:
            if slot.recording:
                self._late.append((play, outcome, reason))
                return
            self._record_begin(play)
        self._record_end(play, outcome)
        self._reports.add(play.record(outcome, reason), slot.recorder)

    def _end_late(self) -> None:
        late, self._late = self._late, []
        for play, outcome, reason in late:
            self._end(play, outcome, reason)

    def _record_begin(self, play: Play) -> None:
        play.slot.recorder.begin(episode=play.index, seed=play.seed)
        play.recorded = play.slot.recording = True

    def _record_end(self, play: Play, outcome: EpisodeOutcome) -> None:
        play.slot.recorder.end(outcome=outcome, flush=False)
        play.slot.recording = False

    def _play_again(self, *, dead: bool) -> None:
        plays, self._plays = self._plays, []
        for play in sorted(plays, key=lambda play: not play.recorded):
            tries = play.tries + dead
            if tries >= TRIES:
                self._end(play, "crashed", "the conductor of its environment or of its agent died")
                continue
            if play.recorded:
                self._record_end(play, "crashed")
            play.slot.again.append((play.index, tries))
            self.simulation.played_again()
        self._end_late()
        self._idle = list(self._slots)

    # -- lines ----------------------------------------------------------------------------------------------

    def _answer(self, line: RequestChannel, request: Any, asked: Sequence[Play], kind: type[Any]) -> Any:
        """None when the answer is a fault of all that were asked for: they have failed. Raises _Lost."""
        try:
            answer = self._heard(line, request, asked)
        except PeerLost:
            self._drop_lost(line)
            raise _Lost(dead=True) from None
        if type(answer) is kind:
            return answer
        where, reason = "wire", f"{type(answer).__name__} where {kind.__name__} was due"
        if type(answer) is wire.FaultFrame:
            where, reason = answer.where, answer.reason
        for play in list(asked):
            self._end(play, "failed", f"{where}: {reason}")
        self._end_late()
        self._idle = [slot for slot in self._slots if all(play.slot is not slot for play in self._plays)]
        return None

    def _heard(self, line: RequestChannel, request: Any, asked: Sequence[Play]) -> Any:
        """The answer. Raises PeerLost, and _Lost when who is to blame for the silence has ended."""
        until = min(play.deadline for play in asked) + SETTLE_SECONDS
        wait: Callable[..., wire.Answer] = partial(line.ask, request)
        while True:
            try:
                return wait(deadline=None if until == inf else until)
            except Interrupted:
                return self._settled(line)
            except Overdue:
                until = self._judged(line, asked, now=max(until, monotonic()))
                wait = line.wait

    def _settled(self, line: RequestChannel) -> Any:
        """The answer after all. Raises PeerLost, and _Lost when all have been cancelled."""
        answer = line.settle(seconds=SETTLE_SECONDS)
        if answer is not None:
            return answer
        self._give_up(line)
        for play in list(self._plays):
            self._end(play, "cancelled")
        raise _Lost(dead=False)

    def _judged(self, line: RequestChannel, asked: Sequence[Play], *, now: float) -> float:
        """Until when others have their time. Raises _Lost when who is to blame has ended."""
        first = self._first if line is self._environment else 0
        due = tuple(p.slot.number - first for p in asked if p.deadline + SETTLE_SECONDS <= now)
        later = [p.deadline + SETTLE_SECONDS for p in asked if p.deadline + SETTLE_SECONDS > now]
        answer = self._give_up(line, due=due if later else ())
        if isinstance(answer, control.NotDue):
            return min(later)
        slot = answer.slot if isinstance(answer, control.Taken) else None
        overdue = [play for play in asked if play.deadline <= now]
        for play in [play for play in overdue if play.slot.number - first == slot] or overdue:
            self._end(play, "timed_out", f"{self._overdue}, and {line.name} hangs")
        raise _Lost(dead=False)

    @property
    def _overdue(self) -> str:
        return f"longer than {self.simulation.command.episode_timeout:g} s"

    def _seen(self, answer: wire.SteppedManyFrame) -> Sequence[Any]:
        observations: Any = answer.observations
        seen: Sequence[Any] = observations.tolist() if self._plain_observation else observations
        return seen

    @staticmethod
    def _line_to(line: RequestChannel | None) -> RequestChannel:
        if line is None:
            raise _Lost(dead=False)
        return line


def _well(play: Play) -> EpisodeOutcome:
    return "terminated" if play.end & wire.TERMINATED else "truncated"

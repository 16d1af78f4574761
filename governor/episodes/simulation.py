"""The simulation of one phase: assigns episodes to its workers, stores their records, decides when the phase ends.

Rules:
1. Workers are daemon threads. The steps of each episode and its line are on disk before it is evaluated and reported, lines in
   the order in which episodes ended; if the disk is full it is `failed`. After the last episode the steps become one table,
   before the end of the part is reported.
2. A worker continues while the governor acknowledges: at most `reports.UNACKNOWLEDGED` reports of each worker are
   unacknowledged, in process `stepping.UNACKNOWLEDGED`. The flow control of an acknowledgement takes effect when it arrives.
3. A stop, and `change`, end running episodes at their next step, as `cancelled`. PAUSE delays the next episode until `pause` ends it or the
   same phase is started again, RESTART until the governor has replaced this process. RESET builds the environments anew first.
4. The seed of an episode depends on the run's seed, the phase and its index alone.
5. The rules of the phase (`PhaseRules`) select the next episode. None begins while a checkpoint is taken; one that cannot be taken is the
   part's failure, and the episodes continue. None begins before the user's conditions (`UserConditions`) have answered about those
   that have ended: of a single worker in `may_end`, else `next_index` waits for it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.episodes.finalizer import Finalizer
from governor.episodes.progress import EpisodeProgress
from governor.episodes.records import episode_file
from governor.episodes.records.recorders import Recorders
from governor.episodes.report_queue import ReportQueue
from governor.episodes.rules.attempts import Attempts
from governor.episodes.rules.conditions import STRENGTH
from governor.episodes.rules.evaluation import entropy
from governor.episodes.rules.phase_rules import PhaseRules
from governor.episodes.rules.seeds import episode_seed
from governor.episodes.rules.stage_ends import StageEnds
from governor.episodes.rules.user_conditions import UserConditions, recorded_episodes
from governor.failures import one_line, reason_of
from governor.messages import Acknowledged, EpisodeRecord, FlowReport, StartSimulation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from governor.episodes.finalizer import Recorded
    from governor.episodes.records.checkpoints import Copy
    from governor.episodes.rules.condition_objects import Answer
    from governor.episodes.rules.failures import BoundsLeft
    from governor.messages import ChangeWorkCommand, ConductorSpec, FlowControl
    from governor.messages.link import Link

T = TypeVar("T")

log = logs.get_logger()

CUT_SHORT: Final = frozenset({"cancelled", "crashed"})
"""Outcomes that the exit of this process alone may have caused: such an episode is not recorded then."""


class Paused(Exception):
    """No episode may begin now, and the caller does not want to wait."""


class Simulation:
    """Public methods may be called from any thread, except `run` and `abandon`, which are for the event loop."""

    def __init__(self, *, command: StartSimulation, spec: ConductorSpec, link: Link) -> None:
        self.command = command
        self.spec = spec
        self.link = link
        self.loop = asyncio.get_running_loop()
        self.stop_signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopping = self.abandoned = self.retiring = False
        self.interrupts = False  # whether `interrupted` may say so of an episode at work
        self.replays = self.resets = self.replayed = 0
        self.figures: dict[str, float] = {}
        """Metrics that the workers add to those of the part."""
        self.joins: dict[str, Callable[[], Any]] = {}  # by agent: what its worker asks a later process of it
        self._end = self._ended_by = self._fault = ""
        self._condition = threading.Condition()
        self._held = self._paused = self._restores = False  # `_paused` by a flow control
        self._rules = PhaseRules(command)
        self.ended_so_far = self._rules.figures.ended
        self._attempts = Attempts(self._rules.retries, command.cancelled)
        self.retries_of = self._attempts.of
        self._stages = StageEnds(
            self._rules, condition=self._condition, ask=self.ask, failed=self._found_faulty
        )
        self.finalizer = Finalizer(command, spec=spec, link=link)
        self._pending: set[Future[Any]] = set()
        self._recorders = Recorders(Path(spec.run_folder), command)
        self.recorder, self.recorder_of = self._recorders.of_spaces, self._recorders.of
        self.batch_recorder = self._recorders.of_batches
        self.reports = ReportQueue(
            command.phase,
            link=link,
            figures=self._rules.figures,
            lock=self._condition,
            ask=partial(self.ask, stoppable=False),
            acknowledged=self._acknowledged,
        )
        self._user = UserConditions(
            command, spec=spec, lock=self._condition, answered=self._answered, failed=self.break_off
        )
        self._began = monotonic()
        self._episodes = self._steps = 0
        """Ended in this process."""

    # -- for the workers ------------------------------------------------------------------------------------

    def next_index(self, *, wait: bool = True, again: int | None = None) -> int | None:
        """The index of the next episode, None when none is left. While none may begin it waits, or raises Paused. `again`: one given before."""
        schedule = self._rules.schedule
        with self._condition:
            self._user.wait()
            while not (self.stopping or self._restores or self.retiring):
                if not (self._held or self._paused or self._stages.holds()):
                    index = schedule.next() if again is None else again
                    if index is not None and self._attempts.cancels(index):
                        again, seed = None, self.seed_of(index)
                        self.ended(EpisodeProgress(0, index, seed, monotonic()).record("cancelled"))
                        continue
                    if index is not None or schedule.is_last:
                        return index
                if not wait:
                    raise Paused
                self._condition.wait()
            return None

    def interrupted(self, index: int) -> bool:
        """Whether the episode is to end at its next step, as cancelled."""
        return self.stopping or index in self._attempts

    def change(self, command: ChangeWorkCommand) -> None:
        """Cancels an episode, or has it played again if it is at work."""
        with self._condition:
            if command.episode is not None and command.episode not in self._rules.figures.ended:
                self._attempts.change(command.change, command.episode, command.reason)
                self.interrupts = True

    def seed_of(self, index: int) -> int:
        return episode_seed(self.command.seed, *entropy(index, self.command))

    def trains(self, index: int) -> bool:
        """Whether the agent explores and learns in this episode."""
        return self._rules.trains(index)

    def would_end(self, records: Sequence[EpisodeRecord]) -> bool:
        """Whether the phase would end if these training episodes ended now."""
        with self._condition:
            return self._rules.would_end(records)

    @property
    def awaits_conditions(self) -> bool:
        """Whether `next_index` would wait for conditions of the user."""
        return self._user.is_behind

    def played_again(self) -> None:
        with self._condition:
            self.replays += 1

    @property
    def bounds_left(self) -> BoundsLeft | None:
        """What may still fail in this phase."""
        return self._rules.bounds_left

    def may_end(self, record: EpisodeRecord) -> bool:
        """Whether the episode must be stored at once, since something may follow from it: called once for each. Of a single worker
        the user's conditions answer now; only the record has an order of the episodes of several.
        """
        with self._condition:
            marked = self._rules.marked(record)
            if self._attempts.may_follow(marked):
                return True
            may_end = self._rules.may_end(marked)
            at_once = self._rules.asks_user and self.command.workers > 1
            return at_once or self._user.ask_first(marked) or may_end

    def ended(self, *records: EpisodeRecord) -> Future[Acknowledged]:
        """Writes, evaluates and reports episodes whose steps are on disk; the future is the acknowledgement of all. A stage of
        the phase ends when all of its episodes are stored.
        """
        lost = CUT_SHORT if self.abandoned else ()
        named = map(self._attempts.marked, records)
        marked = [self._rules.marked(record) for record in named if record.outcome not in lost]
        if not marked:
            nothing: Future[Acknowledged] = Future()
            nothing.set_result(Acknowledged())
            return nothing
        with self._condition:
            if not (marked := self._attempts_over(marked)):
                return self.reports.put()
            marked = self._file.append(*map(self.reports.tracebacks.take, marked))
            for record in marked:
                self._attempts.ended(record.index)
                flow = self._rules.ended(record)
                if self._rules.exceeded:
                    self.stop(end="failures", by=self._rules.exceeded)
                self.apply_flow(flow, end="until", by=self._rules.ended_by)
            self._user.ask(marked)
            self._episodes += len(marked)
            self._steps += sum(record.steps for record in marked)
            self.finalizer.ended(self._rules.figures.ended, self._steps, row_bytes=self._recorders.row_bytes)
            ended = self._rules.schedule.ended
            over = [
                ended(record.index)
                for record in marked
                if record.outcome != "cancelled" or self._attempts.cancels(record.index)
            ]
            if any(over) and (not self.stopping or self._end == "until"):
                self._stages.end()
            reported = self.reports.episodes(marked)
            self._user.stored()
            return reported

    def _attempts_over(self, records: list[EpisodeRecord]) -> list[EpisodeRecord]:
        """Those that are over; the others are played again, unless the phase ends before."""
        ended = []
        for record in records:
            requeued = self._attempts.is_requeued(record)
            if not (number := self._attempts.over(record)):
                ended.append(record)
                continue
            self.reports.attempt(record, number=number, lost=requeued)
            self.replays += 1
            self._rules.schedule.again(record.index)
            self._condition.notify_all()
        return ended

    def ask(self, question: Coroutine[Any, Any, T], *, stoppable: bool = True) -> Future[T]:
        """Runs a coroutine in the event loop. A stop of the part cancels it when it is `stoppable`."""
        future = asyncio.run_coroutine_threadsafe(question, self.loop)
        if stoppable:
            with self._condition:
                self._pending.add(future)
                late = self.stopping
            future.add_done_callback(self._pending.discard)
            if late:
                future.cancel()
        return future

    def apply_flow(self, flow: FlowControl, *, end: str, by: str = "") -> None:
        """Applies a flow control; `end` and `by`, a condition, are values for `PartEndedReport` if it stops the part."""
        if STRENGTH[flow] >= STRENGTH["STOP_SIMULATION"]:
            self.stop(end=end, by=by)
        elif flow != "CONTINUE":
            with self._condition:
                self._paused = self._paused or flow in {"PAUSE", "RESTART"}
                self.resets += flow == "RESET"

    def _answered(self, answer: Answer) -> None:
        """The conditions of the user have answered about an episode; with the lock."""
        stops = STRENGTH[answer.flow] >= STRENGTH["STOP_SIMULATION"]
        follows = not (self.stopping or self._rules.schedule.is_over)
        if stops or (answer.flow != "CONTINUE" and follows):
            self.apply_flow(answer.flow, end="until", by=answer.by)
            self.reports.put(FlowReport(phase=self.command.phase, flow=answer.flow, reason=answer.by))

    def stop(self, *, end: str, by: str = "") -> None:
        """Begins no further episode and cancels the running ones. The first `end` stays."""
        with self._condition:
            if self.stopping:
                return
            self.stopping = self.interrupts = True
            self._end, self._ended_by = end, by
            self._user.end()
            pending = list(self._pending)
        os.eventfd_write(self.stop_signal, 1)
        for future in pending:
            future.cancel()

    def break_off(self, reason: str) -> None:
        """Stops the part for a `reason` outside of its episodes; the first reason stays."""
        self._found_faulty(reason)
        self.stop(end="stopped")

    def _found_faulty(self, reason: str) -> None:
        with self._condition:
            self._fault = self._fault or reason

    # -- for the event loop ---------------------------------------------------------------------------------

    @property
    def progress(self) -> int:
        """A number that changes with each recorded step and each episode."""
        played = self._episodes + self._recorders.taken + self.replayed
        return played + self._user.asked_about + self.finalizer.progress

    def pause(self, *, paused: bool, ends_flow: bool = False) -> None:
        """Whether no further episode begins. `ends_flow`: the PAUSE of a condition is over, too."""
        with self._condition:
            self._held, self._paused = paused, self._paused and not ends_flow
            self._condition.notify_all()

    async def run(
        self,
        play: Callable[[Simulation, int], None],
        *,
        threads: int | None = None,
        copy: Copy | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        """Runs from the first episode to `PartEndedReport`. `play` runs a worker in a thread of its own: one for each worker, or `threads`.
        `copy` copies an agent's state, for checkpoints. `recorded` finds, in a thread too, what the steps name as their episodes, if not indices.
        """
        command = self.command
        path = episode_file.path_of(Path(self.spec.run_folder), command.name)
        told: dict[str, Any] = {"phase": command.name, "mode": command.mode, "reported": command.done.ended}
        try:
            self._file = await asyncio.to_thread(partial(episode_file.EpisodeFile, path=path, **told))
        except OSError as error:
            self.break_off(f"cannot write {path}: {one_line(error)}")
            await self._report_end(0.0)
            return
        with self._file:
            await self._user.open(recorded_episodes(path, command.done.ended))
            stop_clock = self._start_clock()
            self.finalizer.begin()
            self._rules.open(Path(self.spec.run_folder), copy)
            if self._rules.exceeded:
                self.stop(end="failures", by=self._rules.exceeded)
            self._restores = copy is not None and await asyncio.to_thread(self._rules.only_restores)
            if self._restores:  # by a worker that gets no episode
                await self._thread(play, 0)
            self.apply_flow(self._rules.initial_flow, end="until", by=self._rules.ended_by)
            if not self.stopping and self._rules.schedule.stage is not None:  # else nothing is built
                await asyncio.gather(*(self._thread(play, n) for n in range(threads or command.workers)))
            seconds = monotonic() - self._began
            stop_clock()
            if self.retiring and not self.stopping and self._rules.schedule.is_left():
                self.abandon()
            await self._user.close()
            await self._stages.settle_end(abandoned=self.abandoned)
            self._recorders.close()
            if not self.abandoned:
                self._found_faulty(
                    await self.finalizer.finish(recorded or (lambda _: self._rules.figures.ended))
                )
        if not self.abandoned:
            await self._report_end(seconds)
        await self.finalizer.close()

    def retire(self) -> None:
        """Begins no further episode: those that are left are for the process that continues the run."""
        with self._condition:
            self.retiring = True
            self._condition.notify_all()

    def abandon(self) -> None:
        """The process exits. Running episodes are not recorded: the process that continues the run plays them again."""
        self.abandoned = True
        self.finalizer.abandon()
        self.stop(end="stopped")

    def _start_clock(self) -> Callable[[], None]:
        left = self._rules.seconds_left
        stop = partial(self.stop, end="until", by="until (wall_clock)")
        return (lambda: None) if left is None else self.loop.call_later(left, stop).cancel

    # -- the end --------------------------------------------------------------------------------------------

    async def _thread(self, play: Callable[[Simulation, int], None], worker: int) -> None:
        try:
            await in_daemon_thread(partial(play, self, worker), name=f"{self.command.name}.worker.{worker}")
        except Exception as error:  # a worker's own fault ends the part with its reason, not in silence
            log.exception("simulation.worker_failed", worker=worker)
            self.break_off(reason_of(error).within(f"worker {worker}"))

    def _acknowledged(self, reported: Future[Acknowledged]) -> None:
        try:
            flow = reported.result().flow
            if flow == "SHUTDOWN":  # of the daemon: the run goes on in its next invocation
                self.abandon()
            else:
                self.apply_flow(flow, end="stopped")
        except CancelledError:
            self.stop(end="stopped")
        except Exception as error:  # noqa: BLE001  # from the link: the governor refused the event
            self.break_off(reason_of(error))

    async def _report_end(self, seconds: float) -> None:
        """`seconds` is the time during which episodes were played."""
        with self._condition:
            if not self.stopping and self._rules.schedule.is_left():
                self._fault = self._fault or "no worker is left to play the episodes that remain"
                self._end = "stopped"
            self.stopping = True  # from here on the eventfd may be closed
        metrics = self._rules.metrics_at_end(self._steps / seconds if seconds else None) | self.figures
        metrics |= {"episodes_played_again": self.replays} if self.replays else {}
        end = self._end or "max_episodes"
        report = self._rules.report_of_end(
            end=end, ended_by=self._ended_by, fault=self._fault, metrics=metrics
        )
        await self.link.report(report)
        os.close(self.stop_signal)

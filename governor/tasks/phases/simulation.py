"""The simulation of one phase on Ray: `workers` chunks of episodes at a time, each a batch of the engine.

Rules:
1. `episodes.simulation` decides what is played, recorded and reported, and when the part is over, as with every
   transport: a worker here is a thread that uses runners to play (`runner_process.episodes`).
2. An ended episode is reported at once, on its own: it counts, however its chunk ends.
3. The time limit of an episode runs from its own start. A runner that has not ended it `LATE_SECONDS` after that gets the
   batch's grace, then it is killed: the episode is `timed_out`. An episode whose runner exited is repeated, at most
   `MAX_ATTEMPTS` times, then it is `crashed`. Episodes that had not begun go into another chunk.
4. A stop cancels running episodes at their next step. PAUSE, RESET and RESTART apply from the next chunk on.
5. A runner that exits with Ray is no crash: it is not reported, and the episode is repeated when the run is resumed.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter, deque
from concurrent.futures import wait
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import logs
from governor.episodes.progress import EpisodeProgress
from governor.episodes.records.episode_file import as_not_recorded
from governor.episodes.remote.worker import MAX_ATTEMPTS
from governor.episodes.rules.conditions import faults
from governor.episodes.simulation import Paused, Simulation
from governor.failures import Reason, one_line
from governor.messages import TaskRecord, TaskSpec, encode
from governor.messages.figures import PhaseFigures
from governor.tasks.phases.sent_steps import SentSteps
from governor.tasks.ports import BatchListener
from governor.tasks.protocol import episodes
from governor.tasks.protocol.wire import PLAY_CHUNK
from governor.tasks.scheduling.chunks import ChunkSizes
from governor.tasks.scheduling.events import BatchSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from governor.messages import Acknowledged, EpisodeOutcome, EpisodeRecord, StartSimulation
    from governor.tasks.engine import Engine
    from governor.tasks.scheduling.events import (
        Attempt,
        AttemptEnded,
        AttemptStarted,
        BatchEnded,
    )

LATE_SECONDS: Final = 0.5
"""For an episode past its deadline to finish its step."""
GRACE_SECONDS: Final = 1.0
"""For a cancelled episode to finish its step."""

log = logs.get_logger()


def refusals(command: StartSimulation) -> list[str]:
    """The faults of the command, one line each."""
    wrong = faults(command)
    if len(command.agents) != 1:
        wrong.append(f"an environment for one agent takes one, not {len(command.agents)}")
    if command.workers < 1:
        wrong.append(f"workers must be at least 1, not {command.workers}")
    if command.evaluate is not None or command.checkpoint is not None:
        wrong.append("evaluate and checkpoint need an agent that learns, which transport ray does not have")
    if command.transport != "ray":
        wrong.append(f"a task conductor simulates with transport ray, not {command.transport}")
    if command.made_environment is None or len(command.made_agents) != len(command.agents):
        wrong.append("the command does not say what its environment and agents are made of")
    return wrong


class Chunk(BatchListener):
    """Episodes that are sent to one runner. Use it in the event loop only, except
    `ended_episodes`, a queue of the record of each run and its payload, and None at the end.
    """

    def __init__(self, engine: Engine, command: StartSimulation, wanted: episodes.EpisodeChunk) -> None:
        self.wanted = wanted
        self.ended_episodes: SimpleQueue[tuple[TaskRecord, bytes] | None] = SimpleQueue()
        self.begun = -1
        """The run that began last."""
        self.began = 0.0
        self.overdue = -1
        """The run that was cancelled at its time limit."""
        self._engine = engine
        self._command = command
        self._id = f"episodes {command.phase}.{wanted.number}"
        self._alarm: asyncio.TimerHandle | None = None
        self._args = wanted.args()  # here, in the thread of a worker: the state of an agent may be large

    def begin(self) -> None:
        command = self._command
        task = TaskSpec(
            id=f"{command.name}.{self.wanted.number}",
            call=PLAY_CHUNK,
            args=self._args,
            repeat=len(self.wanted.indices) + 1,
            is_eval=command.mode == "eval",
        )
        batch = BatchSpec(id=self._id, tasks=(task,), rank=(float(command.phase), 0), grace=GRACE_SECONDS)
        self._engine.submit(batch, self)

    def cancel(self, reason: str) -> None:
        self._engine.cancel(self._id, reason=reason, gentle=True)

    def attempt_started(self, started: AttemptStarted, *, pid: int, node: str) -> None:
        del pid, node
        self.begun, self.began = started.run, started.at
        self._watch()

    def attempt_ended(self, ended: AttemptEnded) -> None:
        log.warning("episodes.runner_lost", reason=ended.error)

    def run_ended(self, record: TaskRecord, payload: bytes) -> None:
        self.ended_episodes.put((record, payload))

    def traceback(self, attempt: Attempt, run: int, text: str) -> None:
        log.info("episodes.traceback", task=attempt.task.id, run=run, text=text)

    def batch_ended(self, ended: BatchEnded) -> None:
        log.debug("episodes.chunk_ended", batch=ended.batch, end=ended.end)
        if self._alarm is not None:
            self._alarm.cancel()
        self.ended_episodes.put(None)

    def _watch(self) -> None:
        """Checks the time limit of the current run. An alarm set for an earlier run fires too early, and is set again."""
        limit = self._command.build_seconds if self.begun == 0 else self._command.episode_timeout
        due = math.inf if limit is None else self.began + limit + LATE_SECONDS
        if self._alarm is not None:
            if monotonic() < self._alarm.when() <= due:
                return
            self._alarm.cancel()
            self._alarm = None
        if monotonic() >= due:
            self.overdue = self.begun
            self.cancel(f"longer than {limit:g} s")
        elif limit is not None:
            self._alarm = asyncio.get_running_loop().call_at(due, self._watch)


class RaySimulation:
    """The simulation of one phase. `ray_answers` checks whether Ray answers; `give_up` ends the process with a reason."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        engine: Engine,
        ray_answers: Callable[[], Coroutine[Any, Any, bool]],
        give_up: Callable[[str], None],
    ) -> None:
        command = simulation.command
        self.simulation = simulation
        self._engine = engine
        self._ray_answers = ray_answers
        self._give_up = give_up
        self._part = encode(msgspec.structs.replace(command, done=PhaseFigures(), until=()))
        folder = Path(simulation.spec.run_folder)
        self._state_path = folder / "agents" / f"{command.agents[0]}.state"
        self._sent = SentSteps(folder, command.name)
        self._lock = threading.Lock()
        self._sizes = ChunkSizes(workers=command.workers, fixed=command.chunk)
        self._left = command.episodes - len(command.done.ended)
        self._to_repeat: deque[int] = deque()
        self._tries: Counter[int] = Counter()
        self._replays: dict[int, int] = {}
        self._builds_lost = 0
        self._numbers = count()
        self._running: set[Chunk] = set()

    async def run(self) -> None:
        """From the first episode to `PartEnded`."""
        stop: asyncio.Future[Any] = asyncio.wrap_future(self.simulation.ask(asyncio.Event().wait()))
        stop.add_done_callback(self._stopped)
        try:
            await self.simulation.run(self._play)
        finally:
            stop.cancel()
            self._sent.close()

    def _stopped(self, _: asyncio.Future[Any]) -> None:
        with self._lock:
            running = list(self._running)
        for chunk in running:
            chunk.cancel("the phase was stopped")

    # -- in the thread of a worker --------------------------------------------------------------------------

    def _play(self, simulation: Simulation, number: int) -> None:
        """The loop of a worker. The last episode of a chunk is acknowledged before the next chunk begins."""
        del simulation  # the one of this phase
        while indices := self._next_chunk():
            reported = self._play_chunk(indices, number)
            if reported is not None:
                wait([reported])

    def _next_chunk(self) -> list[int]:
        """Episodes for one chunk; none when all are played."""
        with self._lock:
            size = self._sizes.next(self._left)
        taken: list[int] = []
        while len(taken) < size and not self.simulation.stopping:
            with self._lock:
                again = self._to_repeat.popleft() if self._to_repeat else None
            try:
                index = self.simulation.next_index(wait=not taken, again=again)
            except Paused:
                if again is not None:
                    with self._lock:
                        self._to_repeat.appendleft(again)
                break
            if index is None:
                break
            if self.simulation.retries_of(
                index
            ):  # in a stream that is begun after the one of the failed attempt
                with self._lock:
                    self._replays[index] = self.simulation.replays
                    self._left += 1
            taken.append(index)
        with self._lock:
            self._left -= len(taken)
        return taken

    def _requeue(self, indices: list[int], *, replayed: bool = False) -> None:
        with self._lock:
            if replayed:
                self._replays |= dict.fromkeys(indices, self.simulation.replays)
            self._to_repeat += indices
            self._left += len(indices)

    def _play_chunk(
        self, indices: list[int], worker: int, *, with_state: bool = False
    ) -> Future[Acknowledged] | None:
        """Plays a chunk; returns the acknowledgement of its last reported episode."""
        wanted = episodes.EpisodeChunk(
            number=next(self._numbers),
            part=self._part,
            indices=indices,
            worker=worker,
            resets=self.simulation.resets,
            replays=max(self._replays.get(index, 0) for index in indices),
            bears=self.simulation.bounds_left,
            learned=self._state_path.exists(),
            state=self._state_path.read_bytes() if with_state else None,
        )
        chunk = self._begin(wanted)
        reported: Future[Acknowledged] | None = None
        missing = [*range(len(indices) + 1)]
        lost: TaskRecord | None = None
        ready: Any = episodes.READY
        while (ended := chunk.ended_episodes.get()) is not None:
            record, payload = ended
            if record.outcome != "succeeded":
                lost = lost or record
            elif record.run == 0:
                ready = record.value
                missing.remove(0)
            elif record.value == episodes.TOO_MANY_FAILED:
                missing.remove(record.run)
                self._requeue([indices[record.run - 1]])
            elif (played := self._receive(record.value, payload)) is not None:
                reported = self.simulation.ended(played)
                missing.remove(record.run)
        with self._lock:
            self._running.discard(chunk)
        if ready == episodes.WITHOUT_STATE:
            return self._play_chunk(indices, worker, with_state=True)
        if ready != episodes.READY:
            self.simulation.break_off(Reason(*ready))
        elif missing:
            reported = self._left_over(chunk, missing, lost) or reported
        return reported

    def _begin(self, wanted: episodes.EpisodeChunk) -> Chunk:
        chunk = Chunk(self._engine, self.simulation.command, wanted)

        async def begin() -> None:
            if self.simulation.stopping:
                chunk.ended_episodes.put(None)
                return
            with self._lock:
                self._running.add(chunk)
            chunk.begin()

        self.simulation.ask(begin(), stoppable=False).result()
        return chunk

    def _receive(self, value: Any, payload: bytes) -> EpisodeRecord | None:
        """The episode, unless it is to be repeated because another one's cancellation ended it."""
        if value == episodes.UNPREPARED:
            return None
        record, stream = episodes.decode_episode(value)
        if record.outcome == "cancelled" and not self.simulation.stopping:
            return None
        with self._lock:
            self._builds_lost = 0
            self._sizes.observe(record.seconds)
            try:
                self._sent.write(payload, stream=stream, worker=record.worker)
            except OSError as error:
                reason = f"cannot record its steps: {one_line(error)}"
                log.warning("episode.not_recorded", index=record.index, reason=reason)
                return as_not_recorded(record, reason)
        return record

    # -- episodes without a result --------------------------------------------------------------------------

    def _left_over(
        self, chunk: Chunk, missing: list[int], lost: TaskRecord | None
    ) -> Future[Acknowledged] | None:
        """`missing` are runs; `lost` is the record of the first one that the engine ended: the current one, if any was."""
        simulation, wanted = self.simulation, chunk.wanted
        if lost is not None and lost.outcome == "crashed":
            if not simulation.ask(self._ray_answers(), stoppable=False).result():
                simulation.loop.call_soon_threadsafe(self._ray_is_lost)
                return None
        elif lost is not None and lost.outcome == "failed":
            simulation.break_off(Reason(lost.error, lost.traceback))
            return None
        first, *others = missing
        self._requeue([wanted.indices[run - 1] for run in others])
        if first == 0:
            self._not_built(lost, overdue=chunk.overdue == 0)
            return None
        cut_short = self._cut_short(chunk, first, lost)
        if cut_short is not None:
            return simulation.ended(cut_short)
        had_begun = first <= chunk.begun
        if had_begun:
            simulation.played_again()
        self._requeue([wanted.indices[first - 1]], replayed=had_begun)
        return None

    def _cut_short(self, chunk: Chunk, run: int, lost: TaskRecord | None) -> EpisodeRecord | None:
        """The outcome of an episode that its runner has not reported; None if it is to be repeated."""
        simulation = self.simulation
        index = chunk.wanted.indices[run - 1]
        outcome: EpisodeOutcome
        if chunk.overdue == run:
            outcome = "timed_out"
            reason = f"longer than {simulation.command.episode_timeout:g} s, and its runner hangs"
        elif lost is not None and lost.outcome == "crashed":
            self._tries[index] += 1
            outcome, reason = "crashed", Reason(lost.error, lost.traceback)
        elif simulation.stopping and run == chunk.begun:
            outcome, reason = "cancelled", ""
        else:
            return None
        seed = simulation.seed_of(index)
        record = EpisodeProgress(chunk.wanted.worker, index, seed, chunk.began).record(outcome, reason)
        if outcome == "crashed" and self._tries[index] < MAX_ATTEMPTS:
            simulation.reports.attempt(record, number=self._tries[index], lost=True)
            return None
        return record

    def _not_built(self, lost: TaskRecord | None, *, overdue: bool) -> None:
        """The runner has not built environment and agent, and has given no reason."""
        simulation = self.simulation
        what = f"environment {simulation.command.environment!r} and its agent"
        if overdue:
            limit = f"{simulation.command.build_seconds:g} s (deadlines.start)"
            simulation.break_off(f"{what} were not built within {limit}")
        elif lost is not None and lost.outcome == "crashed":
            with self._lock:
                self._builds_lost += 1
                tries = self._builds_lost
            if tries >= MAX_ATTEMPTS:
                simulation.break_off(f"the runner that built {what} exited: {lost.error}")

    def _ray_is_lost(self) -> None:
        self.simulation.abandon()
        self._give_up("Ray is lost: a runner has exited, and Ray does not answer")

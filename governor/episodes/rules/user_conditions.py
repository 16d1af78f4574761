"""Conditions of the user's own: objects that are asked about each episode of a phase, in a thread of theirs.

Rules:
1. They are asked about one episode after the other, in the order of the phase's lines on record. A new process asks its new
   objects about those on record first: what they hold comes back, however the process before has died, in constant memory. Of
   these answers only a stop counts, because the others were obeyed before.
2. Their thread holds no lock. No episode begins before they have answered about those that have ended. What follows from an
   answer begins when its episode is stored: a process that dies before that leaves nothing behind that the next one does not see.
3. An error, an answer that is no flow control, and none within `ANSWER_SECONDS` are failures of the part.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from governor.episodes import exits
from governor.episodes.rules.condition_objects import Answer, ConditionObjects
from governor.episodes.rules.conditions import STRENGTH
from governor.failures import Reason, reason_of, stack_of
from governor.messages import EpisodeRecord
from governor.output.attribution import Attribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from governor.index_ranges import IndexRanges
    from governor.messages import ConductorSpec, StartSimulation

ANSWER_SECONDS: Final = 60.0
"""For one answer of one condition."""
CHECK_SECONDS: Final = 1.0


class UserConditions:
    """Those of one phase; without any it does nothing. `answered` gets each answer, with the `lock`, in the thread of the conditions;
    `failed` gets the reason why there are no more.
    """

    def __init__(
        self,
        command: StartSimulation,
        *,
        spec: ConductorSpec,
        lock: threading.Condition,
        answered: Callable[[Answer], None],
        failed: Callable[[Reason], None],
    ) -> None:
        self._command = command
        self._objects = ConditionObjects(command, run_id=spec.uid, run_folder=Path(spec.run_folder))
        self._lock = lock
        self._answered = answered
        self._failed = failed
        self._asked = self._answers = 0
        self._over = False
        self._first: set[int] = set()
        """Episodes that were asked about and are not stored yet."""
        self._held: list[Answer] = []
        """The answers about them that ask for something."""
        self._queue: queue.SimpleQueue[EpisodeRecord | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def asked_about(self) -> int:
        """Episodes, for signs of life."""
        return self._objects.asked_about

    @property
    def is_behind(self) -> bool:
        """Whether answers are due."""
        return not self._over and self._answers < self._asked

    def ask(self, records: Iterable[EpisodeRecord]) -> None:
        """Each gets an answer, later, unless `ask_first` was called with it; with the lock."""
        if self._thread is not None and not self._over:
            for record in records:
                if record.outcome != "cancelled" and record.index not in self._first:
                    self._asked += 1
                    self._queue.put(record)

    def ask_first(self, record: EpisodeRecord) -> bool:
        """Asks about an episode that is not stored yet; whether something follows from the answer once it is `stored`. Waits,
        with the lock.
        """
        if self._thread is None:
            return False
        self.ask([record])
        self._first.add(record.index)  # the thread can't answer before `wait` gives the lock away
        self.wait()
        return bool(self._held)

    def stored(self) -> None:
        """All episodes that were asked about are stored, and what they led to begins; with the lock."""
        held, self._held = self._held, []
        self._first.clear()
        for answer in held:
            self._answered(answer)

    def wait(self) -> None:
        """Waits for the answers that are due now, or the end of the conditions; with the lock."""
        due = self._asked
        self._lock.wait_for(lambda: self._over or self._answers >= due)

    def end(self) -> None:
        """Nobody waits for answers any more: the phase is over; with the lock."""
        self._over = True
        self._queue.put(None)
        self._lock.notify_all()

    async def open(self, recorded: Iterable[EpisodeRecord]) -> None:
        """Builds the conditions; returns after their answer about all episodes that are `recorded`."""
        if any(rule.entry is not None for rule in self._command.until):
            self._asked += 1
            self._thread = threading.Thread(
                target=partial(self._work, recorded), name=f"{self._command.name}.conditions", daemon=True
            )
            self._thread.start()
            self._check()
            await self._answers_due()

    async def close(self) -> None:
        """Ends the thread after the answers that are due; one that hangs in user code stays."""
        await self._answers_due()
        with self._lock:
            self.end()
        if self._timer is not None:
            self._timer.cancel()

    async def _answers_due(self) -> None:
        def wait() -> None:
            with self._lock:
                self.wait()

        if self.is_behind:
            await asyncio.to_thread(wait)

    def _check(self) -> None:
        """In the event loop, each second: whether the thread is in one call for too long."""
        thread = self._thread
        if thread is None or thread.ident is None or monotonic() - self._objects.since < ANSWER_SECONDS:
            self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)
            return
        self._fail(
            stack_of(thread.ident, f"{self._objects.place} hangs: no answer within {ANSWER_SECONDS:g} s")
        )

    def _fail(self, reason: Reason) -> None:
        with self._lock:  # no episode may begin before `failed` has ended the phase
            if not self._over:
                self._failed(reason)
                self.end()

    # -- in the thread --------------------------------------------------------------------------------------

    def _work(self, recorded: Iterable[EpisodeRecord]) -> None:
        objects = self._objects
        exits.set_description(lambda: objects.place if objects.since < math.inf else "")
        Attribution(self._describe).bind()
        try:
            objects.build()
            self._answer(self._replay(recorded))
            while (record := self._queue.get()) is not None and not self._over:
                self._answer(objects.ask(record))
        except BaseException as error:  # noqa: BLE001  # user code, which may also exit; and the file of the lines
            where, objects.since = objects.place, math.inf
            self._fail(reason_of(error).within(where) if where else reason_of(error))

    def _answer(self, answer: Answer) -> None:
        with self._lock:
            if not self._over:
                self._answers += 1
                if self._first and answer.flow != "CONTINUE":
                    self._held.append(answer)
                else:
                    self._answered(answer)
                self._lock.notify_all()

    def _replay(self, recorded: Iterable[EpisodeRecord]) -> Answer:
        for record in recorded:
            answer = self._objects.ask(record)
            if STRENGTH[answer.flow] >= STRENGTH["STOP_SIMULATION"]:
                return answer
        return Answer("CONTINUE")

    def _describe(self) -> dict[str, str | int]:
        index = self._objects.index
        return {"phase": self._command.name, **({"episode": index} if index >= 0 else {})}


def recorded_episodes(path: Path, ended: IndexRanges) -> Iterator[EpisodeRecord]:
    """The episodes that have `ended` in an earlier process, from their lines on record, in order. Raises OSError."""
    if not ended:
        return
    with path.open("rb") as lines:
        for line in lines:
            data = msgspec.json.decode(line)
            record = msgspec.convert({**data, "value": _number(data["value"])}, EpisodeRecord)
            if record.index in ended and record.outcome != "cancelled":
                yield record


def _number(value: float | None) -> float:
    """JSON has no number for what is not finite."""
    return math.nan if value is None else value

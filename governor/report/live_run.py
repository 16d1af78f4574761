"""One run for all live pages that show it: its sections as JSON, each with a version.

Rules:
1. `heed` takes the run's line of the list, once a second, and never waits: the summary says at once that the run has ended.
2. All else is made in one task beside it. A section whose turn has come is made again when the run has moved on, or after `STILL_SECONDS`.
3. A section that can't be made is missing, with its reason; the daemon's absence is no such reason, and the next turn tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.errors import NoAnswer, NoSuchRun, TryAgain, Unreachable
from governor.report.collect import RunCollector
from governor.report.document import Summary
from governor.report.page import encode
from governor.report.source import DaemonSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from governor.executor import Executor
    from governor.messages import RunEvent, RunStatus

SHARE: Final = 150
"""A section that the daemon answers for is made again after so many times what it took: four of these are a fiftieth of a core at most."""
SHARES: Final = {
    "episodes": 20,
    "steps": 20,
    "sessions": 20,
    "tasks": 20,
    "run_file": 1000,
    "environment": 1000,
}
"""Others are read from files, without the daemon; the last two do not change."""
STILL_SECONDS: Final = 5.0
"""A run that does not move on is asked for so seldom: its spans grow all the same."""
ABSENT: Final = (Unreachable, NoAnswer, TryAgain, TimeoutError)
"""What says nothing about the run."""


class Section(msgspec.Struct, frozen=True):
    """A field of `RunDocument`, as JSON."""

    version: int
    value: str


class LiveRun:
    """`sections` by name; `changed` is called when some are new. `pages`: how many show it."""

    def __init__(self, executor: Executor, uid: str, changed: Callable[[], None]) -> None:
        self.uid = uid
        self.pages = 0
        self.is_over = False
        self.sections: dict[str, Section] = {}
        self._source = _LiveSource(executor)
        self._changed = changed
        self._summary: Summary | None = None
        self._missing: dict[str, str] = {}
        self._due: defaultdict[str, float] = defaultdict(float)
        self._making: asyncio.Task[None] | None = None
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self._ended: tuple[str, ...] | None = None

    def heed(self, line: RunStatus) -> None:
        """`line`: what the list of runs says of it."""
        if self._summary is not None:
            self._note(line)
        if self.is_over or (self._making is not None and not self._making.done()):
            return
        seen = (line.state, line.phase, line.episodes_ended, line.tasks_ended, line.waits_for, line.outcome)
        now = time.monotonic()
        if seen == self._seen and now < self._seen_at + STILL_SECONDS:
            return
        self._seen, self._seen_at = seen, now
        self._making = asyncio.create_task(
            self._make(has_ended=line.outcome is not None), name=f"live.{self.uid}"
        )

    def lost(self, why: str) -> None:
        """The daemon no longer knows it: it was removed, or this is the daemon of another state folder."""
        if self._summary is None or self._summary.outcome == "in work":
            known = self._summary or Summary(uid=self.uid, name=self.uid, outcome="", submitted_at=0.0)
            self._put("summary", msgspec.structs.replace(known, outcome="lost", state="lost", reason=why))
        self.is_over = True
        self._changed()

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            with suppress(asyncio.CancelledError):
                await self._making

    def _note(self, line: RunStatus) -> None:
        """Has the summary say what the line says, before the rest of it is asked for."""
        known = self._summary
        if known is None or known.outcome != "in work":
            return
        noted = msgspec.structs.replace(known, state=line.state, waits_for=line.waits_for)
        if line.outcome is not None:
            noted = msgspec.structs.replace(
                noted, outcome=line.outcome, state="ended", reason=line.reason, ended_at=line.ended_at
            )
        if noted != known:
            self._put("summary", noted)
            self._changed()

    async def _make(self, *, has_ended: bool) -> None:
        try:
            began = time.monotonic()
            if has_ended or self._due["summary"] <= began:
                result = await self._source.result(self.uid)
                ended = result.outcome != "in work"
                collector = RunCollector(self._source, result)
                self._put("summary", await collector.summary())
                self._pace("summary", began)
                self._changed()
                for name, make in collector.sections.items():
                    if ended or self._due[name] <= time.monotonic():
                        await self._make_section(name, make)
                self.is_over = ended
        except NoSuchRun as error:
            self.lost(str(error))
        except ABSENT:
            self._seen_at = 0.0
        self._changed()

    async def _make_section(self, name: str, make: Callable[[], Awaitable[Any]]) -> None:
        began = time.monotonic()
        try:
            value = await make()
            text = await asyncio.to_thread(encode, value)
        except (NoSuchRun, *ABSENT):
            raise
        except Exception as error:  # noqa: BLE001  # one section does not hold up the others
            self._missing[name] = f"{name.replace('_', ' ')}: {error}"
        else:
            self._missing.pop(name, None)
            self._put_text(name, text)
        self._pace(name, began)
        self._put("missing", [*self._missing.values()])

    def _pace(self, name: str, began: float) -> None:
        now = time.monotonic()
        self._due[name] = now + SHARES.get(name, SHARE) * (now - began)

    def _put(self, name: str, value: Any) -> None:
        if isinstance(value, Summary):
            self._summary = value
        self._put_text(name, encode(value))

    def _put_text(self, name: str, text: str) -> None:
        known = self.sections.get(name)
        if known is None or known.value != text:
            self.sections[name] = Section(1 if known is None else known.version + 1, text)


class _LiveSource(DaemonSource):
    """Asks only for those events that are new since it asked last."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self._events: defaultdict[tuple[str, ...], list[RunEvent]] = defaultdict(list)

    async def events(self, uid: str, kinds: Sequence[str]) -> AsyncIterator[RunEvent]:
        known = self._events[tuple(kinds)]
        after = known[-1].seq if known else 0
        async for event in self._executor.watch(uid, after, follow=False, kinds=tuple(kinds)):
            known.append(event)
        for event in known:
            yield event

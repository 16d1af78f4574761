"""What changes on the live page: the list of runs, and the sections of the run that a page shows.

Rules:
1. The daemon is asked only while a page is open, once a second for all pages together: for the list of runs. The sections of a run
   follow when it has moved on, at most for a twentieth of the time; its rows when they are a tenth more, or when it has ended.
2. A section is sent when it differs from what that page has.
3. A daemon that is gone is told within two seconds, and asked again until it is back.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from governor.errors import GovernorError, NoAnswer, Unreachable
from governor.report.collect import RunCollector, document_of
from governor.report.document import Summary
from governor.report.page import encode
from governor.report.source import DaemonSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from governor.executor import Executor
    from governor.messages import RunStatus
    from governor.report.document import Document

SECONDS: Final = 1.0
"""Between two questions."""
SHARE: Final = 20
"""A run is asked for again after so many times what the last answers took."""
LISTED: Final = 100
"""Runs that the page offers."""
HEARTBEAT: Final = 10
"""So many rounds without news, then a sign of life."""
_ROWS: Final = ("episodes", "steps", "sessions", "tasks")
"""Sections that are read from files, which may be large."""


class LiveRun:
    """One run for all pages that show it. `follow` asks for it again where that is due; `sections` are the last answers, as JSON."""

    def __init__(self, executor: Executor, uid: str) -> None:
        self.uid = uid
        self.is_over = False
        self.sections: dict[str, str] = {}
        self._source = DaemonSource(executor)
        self._rows_at = -1.0
        self._seen: tuple[object, ...] = ()
        self._due = 0.0

    async def follow(self, listed: RunStatus | None) -> None:
        """`listed`: its line in the list of runs. Raises GovernorError."""
        if self.is_over:
            return
        status = listed or await self._source.status(self.uid)
        if status is None:
            return
        now = time.monotonic()
        has_ended = status.ended_at is not None
        seen = (status.state, status.phase, status.episodes_ended, status.tasks_ended, status.waits_for)
        if has_ended or (seen != self._seen and now >= self._due):
            await self._refresh()
            self._seen = seen
            self._due = time.monotonic() + SHARE * (time.monotonic() - now)

    async def _refresh(self) -> None:
        result = await self._source.result(self.uid)
        self.uid = result.uid
        ended = result.outcome != "in work"
        collector = RunCollector(self._source, result)
        size = sum(
            sum(phase.episodes.values()) + sum(phase.task_outcomes.values()) for phase in result.phases
        )
        reads_rows = ended or size > self._rows_at * 1.1
        missing = []
        values: dict[str, Any] = {"summary": await collector.summary()}
        for name, make in collector.sections.items():
            if name in _ROWS and not reads_rows:
                continue
            try:
                values[name] = await make()
            except Unreachable:
                raise
            except (GovernorError, OSError, ValueError) as error:
                missing.append(f"{name.replace('_', ' ')}: {error}")
        if reads_rows:
            self._rows_at = size
        values["missing"] = missing
        self.sections |= {name: encode(value) for name, value in values.items()}
        self.is_over = ended

    def lost(self, why: str) -> None:
        """The daemon no longer knows it: it was pruned, or this is the daemon of another state folder."""
        about = Summary(uid=self.uid, name=self.uid, outcome="lost", reason=why, submitted_at=0.0)
        self.sections["summary"] = encode(about)
        self.is_over = True


class Live:
    """The runs that pages show, asked for in turns. Use `following` for each page."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._runs: dict[str, LiveRun] = {}
        self._pages = 0
        self._asking: asyncio.Task[None] | None = None
        self._round = asyncio.Condition()
        self.is_up = True
        self._list = "[]"

    async def document(self, uid: str | None) -> Document:
        """For a new page: of the run `uid`, by default of the newest one. Raises GovernorError."""
        listed = (await self._executor.list(LISTED)).runs
        if uid is None and listed:
            uid = listed[0].uid
        if uid is None:
            return document_of([], live=True)
        result = await self._executor.result(uid, so_far=True)
        run = await RunCollector(DaemonSource(self._executor), result).collect()
        return document_of([run], live=True)

    async def following(self, uid: str | None) -> AsyncGenerator[tuple[str, str], None]:
        """Names of events and their JSON, for one page; an empty name is a sign of life."""
        sent: dict[str, bytes] = {}
        if uid:
            self._runs.setdefault(uid, LiveRun(self._executor, uid))
        self._pages += 1
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="live.ask")
        quiet = 0
        try:
            while True:
                news = [*self._news(uid, sent)]
                for event in news:
                    yield event
                quiet = 0 if news else quiet + 1
                if quiet >= HEARTBEAT:
                    quiet = 0
                    yield "", ""
                async with self._round:
                    await self._round.wait()
        finally:
            self._pages -= 1
            if not self._pages:
                self._asking.cancel()
                with suppress(asyncio.CancelledError):
                    await self._asking
                self._asking = None
                self._runs.clear()

    def _news(self, uid: str | None, sent: dict[str, bytes]) -> list[tuple[str, str]]:
        found = [("daemon", f'{{"up":{str(self.is_up).lower()}}}'), ("runs", self._list)]
        if uid and (run := self._runs.get(uid)) is not None:
            found += [
                ("section", f'{{"uid":{encode(run.uid)},"name":{encode(name)},"value":{value}}}')
                for name, value in run.sections.items()
            ]
        news = []
        for name, data in found:
            key = name if name != "section" else data[: data.index('"value"')]
            digest = blake2b(data.encode(), digest_size=16).digest()
            if sent.get(key) != digest:
                sent[key] = digest
                news.append((name, data))
        return news

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SECONDS
            try:
                await self._ask_once()
                self.is_up = True
            except (Unreachable, NoAnswer, TimeoutError):
                self.is_up = False
            async with self._round:
                self._round.notify_all()
            await asyncio.sleep(max(due - loop.time(), SECONDS / 4))

    async def _ask_once(self) -> None:
        """Raises Unreachable, NoAnswer, TimeoutError."""
        async with asyncio.timeout(SECONDS):
            runs = (await self._executor.list(LISTED)).runs
        listed = {run.uid: run for run in runs}
        self._list = encode(
            [
                {"uid": run.uid, "name": run.name, "outcome": run.outcome or "in work", "state": run.state}
                for run in runs
            ]
        )
        for run in [*self._runs.values()]:
            try:
                await run.follow(listed.get(run.uid))
            except (Unreachable, NoAnswer):
                raise
            except GovernorError as error:
                run.lost(str(error))

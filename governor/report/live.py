"""What changes on the live page: the list of runs, and the sections of the run that a page shows.

Rules:
1. The daemon is asked only while a page is open, once a second for all pages together: for the list of runs. What the list says of a
   run is on its page at once.
2. The sections of a run are made beside that, and each again only after many times what it took (`live_run.SHARES`): a large run costs no more
   than a small one, and holds up no news. When a run has ended, all are made once more.
3. A section is sent when it differs from what that page has.
4. A daemon that is gone is told within two seconds, and asked again until it is back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from governor.errors import GovernorError, NoSuchRun
from governor.report.collect import RunCollector, document_of
from governor.report.document import RunDocument
from governor.report.live_run import LiveRun
from governor.report.page import encode
from governor.report.source import DaemonSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from governor.executor import Executor
    from governor.report.document import Document

SECONDS: Final = 1.0
"""Between two questions."""
ANSWER_SECONDS: Final = 0.9
"""A daemon that needs longer for its list is away. With `SECONDS` less than two seconds."""
LISTED: Final = 100
"""Runs that the page offers."""
HEARTBEAT_SECONDS: Final = 10.0
"""Without news for so long: a sign of life, which also finds out that a page is gone."""


class Live:
    """The runs that pages show, asked for in turns. Use `following` for each page."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._runs: dict[str, LiveRun] = {}
        self._pages = 0
        self._asking: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()
        self._is_up: bool | None = None
        self._list = "[]"
        self._lists = 0

    async def document(self, uid: str | None) -> Document:
        """For a new page: the summary of the run `uid`, by default of the newest one; the rest follows as events. Raises GovernorError."""
        if uid is None:
            uid = next((run.uid for run in (await self._executor.list(1)).runs), None)
        if uid is None:
            return document_of([], live=True)
        result = await self._executor.result(uid, so_far=True)
        summary = await RunCollector(DaemonSource(self._executor), result).summary()
        return document_of([RunDocument(summary=summary)], live=True)

    async def following(self, uid: str | None) -> AsyncGenerator[tuple[str, str], None]:
        """Names of events and their JSON, for one page, until it is closed; an empty name is a sign of life."""
        run = self._enter(uid)
        sent: dict[str, int | bool] = {}
        try:
            while True:
                for event in self._unsent(run, sent):
                    yield event
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS), self._news:
                        await self._news.wait_for(lambda: self._has_news(run, sent))
                except TimeoutError:
                    yield "", ""
        finally:
            await self._leave(run)

    def _enter(self, uid: str | None) -> LiveRun | None:
        run = None
        if uid:
            run = self._runs.setdefault(uid, LiveRun(self._executor, uid, self._wake))
            run.pages += 1
        self._pages += 1
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="live.ask")
        return run

    async def _leave(self, run: LiveRun | None) -> None:
        if run is not None:
            run.pages -= 1
            if not run.pages:
                self._runs.pop(run.uid, None)
                await run.close()
        self._pages -= 1
        if not self._pages and self._asking is not None:
            asking, self._asking = self._asking, None
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    def _versions(self, run: LiveRun | None) -> dict[str, int | bool]:
        sections = {} if run is None else {name: each.version for name, each in run.sections.items()}
        known = {} if self._is_up is None else {" daemon": self._is_up}
        return known | ({" runs": self._lists} if self._lists else {}) | sections

    def _has_news(self, run: LiveRun | None, sent: dict[str, int | bool]) -> bool:
        return self._versions(run) != sent

    def _unsent(self, run: LiveRun | None, sent: dict[str, int | bool]) -> list[tuple[str, str]]:
        events = []
        for key, version in self._versions(run).items():
            if key in sent and sent[key] == version:
                continue
            sent[key] = version
            if key == " daemon":
                events.append(("daemon", encode({"up": self._is_up})))
            elif key == " runs":
                events.append(("runs", self._list))
            elif run is not None:
                value = run.sections[key].value
                events.append(("section", f'{{"uid":{encode(run.uid)},"name":"{key}","value":{value}}}'))
        return events

    def _wake(self) -> None:
        """Has the pages look for news."""
        waking = asyncio.ensure_future(self._tell())
        self._waking.add(waking)
        waking.add_done_callback(self._waking.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SECONDS
            try:
                await self._ask_once()
                self._is_up = True
            except (GovernorError, TimeoutError):  # whatever it says: there is no list
                self._is_up = False
            await self._tell()
            await asyncio.sleep(due - loop.time())

    async def _ask_once(self) -> None:
        """Raises GovernorError, TimeoutError."""
        async with asyncio.timeout(ANSWER_SECONDS):
            runs = (await self._executor.list(LISTED)).runs
            listed = {run.uid: run for run in runs}
            for run in [*self._runs.values()]:
                if (line := listed.get(run.uid)) is not None:
                    run.heed(line)
                elif not run.is_over:
                    await self._heed_older(run)
        offered = [
            {"uid": run.uid, "name": run.name, "outcome": run.outcome or "in work", "state": run.state}
            for run in runs
        ]
        if (text := encode(offered)) != self._list or not self._lists:
            self._list = text
            self._lists += 1

    async def _heed_older(self, run: LiveRun) -> None:
        """Of a run that is not among the newest."""
        try:
            report = await self._executor.status(run.uid)
        except NoSuchRun as error:
            run.lost(str(error))
        else:
            run.heed(report.runs[0])

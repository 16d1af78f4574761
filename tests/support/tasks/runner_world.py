"""Runners on a real Ray without an engine: a test sends work, and receives all their messages in order."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import defaultdict
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from governor.output.spool_folder import SpoolFolder
from governor.tasks.protocol.wire import Begun, Over, WorkItem
from governor.tasks.scheduling.events import RunnerGone, RunnerReady

USER_CODE = Path(__file__).parents[2] / "governor" / "tasks" / "user_code"
SECONDS = 60.0
"""For what hangs: a runner starts in 20 s where eight processes and another Ray keep two cores busy."""


class Heard:
    """The listener: `of` has all messages of each runner; revoked work is a tuple of tickets."""

    def __init__(self):
        self.of = defaultdict(list)
        self._news = asyncio.Event()

    def runner_changed(self, event):
        self._add(event.runner, event)

    def runner_reported(self, runner, messages, now):
        self._add(runner, *messages)

    def runner_revoked(self, runner, tickets):
        self._add(runner, tickets)

    def all(self, runner, kinds, ticket=None):
        return [
            each
            for each in self.of[runner]
            if isinstance(each, kinds) and (ticket is None or each.ticket == ticket)
        ]

    async def until(self, condition, *, seconds=SECONDS):
        """The result of the condition, once it is true."""
        async with asyncio.timeout(seconds):
            while not (found := condition()):
                self._news.clear()
                await self._news.wait()
        return found

    def _add(self, runner, *news):
        gone = [each for each in self.of[runner] if isinstance(each, RunnerGone)]
        assert not gone, f"news of a runner that is gone: {news}"
        self.of[runner] += news
        self._news.set()


class World:
    def __init__(self, runners, spools):
        self.runners = runners
        self.printed = []
        """Lines that user code has printed, as far as `until_printed` has read them."""
        self._spools = SpoolFolder(spools, lines_per_second=10_000, bytes_per_second=1 << 24)
        self.heard = runners.listener = Heard()
        self._tickets = count(1)
        self._idle = []

    async def ready(self, *, fresh=False, shape=()):
        """An idle runner; `fresh`: one that has never had work."""
        while self._idle and not fresh and not shape:
            runner = self._idle.pop()
            if not self.heard.all(runner, RunnerGone):
                return runner
        runner = next(self.runners.ids)
        self.runners.start(runner, shape)
        (event,) = await self.heard.until(lambda: self.heard.all(runner, RunnerReady | RunnerGone))
        assert isinstance(event, RunnerReady), event.reason
        return runner

    def node_of(self, runner):
        return self.runners._handles[runner].node

    def give_back(self, runner):
        self._idle.append(runner)

    def work(self, call, **fields):
        ticket = next(self._tickets)
        fields = {"batch": "batch", "task": f"t{ticket}", "runs": (0,), "attempt": 1, **fields}
        fields.setdefault("stem", f"results/t{ticket}")
        return WorkItem(ticket=ticket, call=call if ":" in call else f"runner_deeds:{call}", **fields)

    async def run(self, call, **fields):
        """Runs one attempt on a runner that is used again. Returns the ends of its runs."""
        runner, work = await self.ready(), self.work(call, **fields)
        self.runners.send(runner, [work])
        overs = await self.over(runner, work)
        self.give_back(runner)
        return overs

    async def begun(self, runner, work):
        return (await self.said(runner, Begun, work.ticket))[0]

    async def over(self, runner, work, *, seconds=SECONDS):
        return await self.said(runner, Over, work.ticket, count=len(work.runs), seconds=seconds)

    async def said(self, runner, kinds, ticket=None, *, count=1, seconds=SECONDS):
        """Waits for at least `count` messages of these kinds."""

        def found():
            messages = self.heard.all(runner, kinds, ticket)
            if len(messages) >= count:
                return messages
            assert not self.heard.all(runner, RunnerGone), self.heard.of[runner][-1]
            return None

        return await self.heard.until(found, seconds=seconds)

    async def until_printed(self, condition, *, seconds=20):
        """What the condition finds among all lines that were printed, once that is anything."""
        async with asyncio.timeout(seconds):
            while not (found := [line for line in self.printed if condition(line)]):
                self.printed += await asyncio.to_thread(self._spools.read)
                await asyncio.sleep(0.02)  # files tell nobody
        return found

    async def gone(self, runner, *, seconds=SECONDS):
        return (await self.heard.until(lambda: self.heard.all(runner, RunnerGone), seconds=seconds))[0]


def hide(runners):
    """Removes the unix socket."""
    Path(runners._connections.path).unlink()


@asynccontextmanager
async def open_world(cluster, folder, *, unix=True, working_folder=None, prints=False):
    """Without `unix`, runners find no socket file and connect by TCP, as from another machine. With `prints`, what they print is
    collected (`World.until_printed`).
    """
    from governor.tasks.runners.pool import Runners

    sockets = Path(tempfile.mkdtemp(prefix="governor-test-"))
    runners = Runners(
        cluster=cluster,
        run="test-run",
        run_folder=folder,
        socket_folder=sockets,
        import_path=[str(USER_CODE)],
        working_folder=working_folder,
        spools=folder / "spools" if prints else None,
    )
    if not unix:
        hide(runners)
    world = World(runners, folder / "spools")
    world.sockets = sockets
    try:
        yield world
    finally:
        await runners.close()
        shutil.rmtree(sockets)

"""The client itself: it submits and follows runs, and asks about them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from governor.errors import (
    BadRequest,
    GoingDown,
    UsageError,
)
from governor.executor.connection import RETRY_SECONDS, key_of
from governor.executor.control import Control
from governor.executor.files import RunFiles
from governor.executor.groups import Groups
from governor.executor.watching import Watching
from governor.messages import (
    SERVICE,
    ExecutorReply,
    Explain,
    Explanation,
    FailureList,
    GetCurves,
    GetStatus,
    ListFailures,
    ListRuns,
    OutputLine,
    OutputPage,
    Prune,
    Pruned,
    ReadOutput,
    Results,
    Resume,
    RunCurves,
    RunEvent,
    RunList,
    RunResult,
    StatusReport,
    Submit,
    Submitted,
    Watch,
    WatchEnd,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from governor.executor.following import Followed
    from governor.result import Result
    from governor.run_file.load import Examined, Run

RESUME_SECONDS: Final = 120.0
"""Limit for a resume: the daemon copies files of tasks from the folder of a run."""
COPY_SECONDS: Final = 120.0
"""Limit for a submit with a snapshot: 10,000 files take some seconds, and far more on a slow disk."""
PRUNE_SECONDS: Final = 120.0
"""Limit for a prune: the daemon measures the files of many runs."""

R = TypeVar("R", bound=ExecutorReply)


class Executor(Control, RunFiles, Groups):
    """The client of a daemon: an async context manager, ``async with Executor() as executor: ...``, for one event loop.

    Each call may raise Unreachable (no daemon was reached within `patience`), NoAnswer (no reply within `timeout`) and NotPermitted.

    Args:
        broker: the daemon's endpoint, or the path of its socket. By default ``$GOVERNOR_BROKER``, else the socket in the first
            runtime folder that has one.
        context: a daemon on another machine: the name of a context, or the path of its file. By default ``$GOVERNOR_CONTEXT``.
        timeout: the deadline of each call, in seconds.
        patience: for so many seconds a call tries again to reach a daemon that is gone, as one that is restarted.
        awaits_restart: if not, a daemon that shuts down in order is not waited for: a `watch` ends then, and a run that
            is no longer accepted is refused.
        service: the uid of a `RunGovernor`, to drive that instead of a daemon.

    Raises:
        Unreachable: no broker is given, and there is no socket.
        UsageError: an argument makes no sense, or the context cannot be read.
    """

    async def submit(
        self,
        run: Run | Examined | Mapping[str, Any] | str | Path,
        key: str | None = None,
        *,
        folder: str | Path | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        """Submits a run and returns its id, once it is in the daemon's journal.

        Args:
            run: the path of a run file, a `Run`, or the same as plain data (a dict).
            key: the same key gives the same run, so that it may be submitted again; 256 characters at most.
            folder: the folder from which its code is imported. By default that of the run file, else the current one. To a daemon on
                another machine its files are sent (100 MiB at most), and the run keeps a copy, as with ``code: snapshot``.
            params: values by paths that are listed with the run, as those of a matrix are; they change nothing.

        Raises RunFileError with all faults, UsageError for a run file with a `matrix` (`submit_group`), for a key that is too long or that of another run file, TryAgain when
        the daemon takes no run now (its queue or its disk is full, or it is going down).
        """
        from governor.run_file.load import in_plain  # noqa: PLC0415  # pydantic is slow; other verbs do without

        raw, home, source = await asyncio.to_thread(in_plain, run, folder)
        raw, home = await self._with_code(raw, home)
        asked = Submit(run=raw, folder=home, key=key_of(key), params=dict(params or {}))
        seconds = max(self.timeout, COPY_SECONDS) if raw.get("code") == "snapshot" else None
        return (await self._ask(asked, Submitted, source=source, seconds=seconds)).uid

    async def resume(self, uid: str, key: str | None = None) -> str:
        """Submits a new run that keeps what the run `uid` has finished, and does the rest; returns its id, as `submit` does.

        Raises NotEnded (also when another run resumes it right now), AlreadyEnded when nothing of it is missing,
        NoSuchRun, TryAgain, UsageError when its files are gone.
        """
        asked = Resume(uid=uid, key=key_of(key))
        answer = await self._ask(asked, Submitted, source=uid, seconds=max(self.timeout, RESUME_SECONDS))
        return answer.uid

    def watch(
        self, uid: str, after: int = 0, *, follow: bool = True, kinds: tuple[str, ...] = ()
    ) -> Watching:
        """The events of a run, numbered without gaps, until it has ended; also over a restart of the daemon.

        ``async for event in executor.watch(uid)`` gives each event once: its `seq`, `at` (seconds since 1970), `kind` and `data`.

        Args:
            uid: the id of a run, or a unique beginning of it.
            after: only events with a number above this.
            follow: if not, only the events that are on record now.
            kinds: only events of these kinds, as ``phase.ended``.

        The iteration raises NoSuchRun, and Unreachable for a daemon that died and did not come back.
        """
        return Watching(self._messages(Watch(uid=uid, after=after, follow=follow, kinds=kinds)))

    async def _messages(self, asked: Watch) -> AsyncGenerator[list[RunEvent | WatchEnd], None]:
        """The events, as many as come together, then the end of the watch."""
        async for messages in self._follow(asked, behind=_behind):
            yield [message for message in messages if isinstance(message, RunEvent | WatchEnd)]

    async def wait(self, uid: str) -> Result:
        """Waits until a run has ended, also over a restart of the daemon, and returns its result: a `governor.Result`, which reads
        the rows of episodes, steps and tasks, too (`result` returns the daemon's message). From a daemon on another machine all files
        of the run are copied for that (`files`).

        Raises NoSuchRun, and where the daemon does not come back within `patience` GoingDown (it was stopped; the run goes on
        with its next start) or Unreachable (it died).
        """
        from governor.result import Result  # noqa: PLC0415  # not for the command line

        if not isinstance(uid, str):
            raise UsageError(f"wait takes the id of a run, not {uid!r}")
        [run] = (await self.status(uid)).runs
        events = self.watch(run.uid, after=2**62)  # after every event: of a long run the end alone
        async for _ in events:
            pass
        if events.end is None or events.end.outcome == "interrupted":
            then = "goes on when it is started again" if self.service == SERVICE else "has ended with it"
            raise GoingDown(f"the daemon went down; run {run.uid} {then}")
        found = await self.result(run.uid)
        if self.keys is not None:
            found = msgspec.structs.replace(found, folder=str(await self.files(run.uid)))
        return Result.of(found)

    async def status(self, uid: str | None = None) -> StatusReport:
        """The daemon, its runs in work, and the first 100 queued; with the id of a run that run alone, also if it has ended. Raises NoSuchRun."""
        return await self._ask(GetStatus(uid=uid), StatusReport, source=uid or "")

    async def explain(self, uid: str) -> Explanation:
        """What a run does and waits for, since when, and until when at most (seconds since 1970). Raises NoSuchRun."""
        return await self._ask(Explain(uid=uid), Explanation, source=uid)

    async def list(
        self,
        limit: int = 100,
        *,
        after: str | None = None,
        group: str | None = None,
        labels: Mapping[str, str] | None = None,
        state: str | None = None,
        sort: str | None = None,
        descending: bool = False,
    ) -> RunList:
        """The newest `limit` runs (10,000 at most), newest first; with the id of a run those submitted before that run.
        ``list(after=page.runs[-1].uid)`` is the page behind one with ``page.more``. Raises NoSuchRun, UsageError.

        Args:
            limit: so many runs at most.
            after: the id of a run.
            group: the id of a group: only its runs.
            labels: only runs with all of these.
            state: only runs in this state (as ``queued``), or with this outcome (as ``failed``).
            sort: not by the time of their submission, but by a metric (as ``return_mean``), by a path of a matrix or its end (as ``alpha``),
                or by ``seconds``, ``name``, ``submitted``, ``started``, ``ended``: the lowest first. Of the newest 10,000 of the list.
            descending: the highest first.
        """
        asked = ListRuns(
            limit=limit,
            after=after,
            group=group,
            labels=dict(labels or {}),
            state=state,
            sort=sort,
            descending=descending,
        )
        page = await self._ask(asked, RunList, source=after or group or "")
        if after is not None and page.more is None:
            raise BadRequest("the daemon is of an older version, which lists no runs `after` another")
        return page

    async def logs(self, asked: ReadOutput, *, follow: bool = False) -> AsyncGenerator[OutputLine, None]:
        """What user code printed and logged, line by line; with `follow` until the run has ended. Raises NoSuchRun, UsageError."""
        async for page in self.output_pages(asked, follow=follow):
            for line in page.lines:
                yield line

    async def output_pages(self, asked: ReadOutput, *, follow: bool) -> AsyncGenerator[OutputPage, None]:
        """As `logs`, page by page."""
        while True:
            page = await self._ask(asked, OutputPage, source=asked.uid)
            yield page
            if not page.more and (page.ended or not follow):
                return
            asked = msgspec.structs.replace(asked, cursor=page.cursor)
            if not page.more:
                await asyncio.sleep(RETRY_SECONDS)

    async def prune(
        self, keep_runs: int | None = None, keep_days: float | None = None, *, dry_run: bool = False
    ) -> Pruned:
        """Removes ended runs with their files, except the newest `keep_runs` and those that ended within the last `keep_days`;
        with neither, by the daemon's configuration. Raises UsageError when that has no bounds either.
        """
        asked = Prune(keep_runs=keep_runs, keep_days=keep_days, dry_run=dry_run)
        return await self._ask(asked, Pruned, seconds=max(self.timeout, PRUNE_SECONDS))

    async def result(self, uid: str, *, so_far: bool = False) -> RunResult:
        """The result of a run that has ended, as a message (`wait` returns a `governor.Result`); with `so_far` also of one in work. Raises NotEnded, NoSuchRun."""
        asked = Results(uid=uid, so_far=so_far)
        return await self._ask(asked, RunResult, source=uid, send=self._gather)

    async def failures(
        self, uid: str, *, phase: str | None = None, after: int = 0, limit: int = 20
    ) -> FailureList:
        """The first `limit` failures (1,000 at most) of a run, or of one `phase`, with their tracebacks, also while it is in work.
        ``failures(uid, after=page.failures[-1].event)`` is the page behind one with ``page.more``. Raises NoSuchRun, UsageError.
        """
        asked = ListFailures(uid=uid, phase=phase, after=after, limit=limit)
        return await self._ask(asked, FailureList, source=uid, send=self._gather)

    async def curves(self, uid: str, metric: str, *, phase: str | None = None) -> RunCurves:
        """How a metric went in a run, also in one at work: a `RunCurves`. Raises NoSuchRun, UsageError for an unknown phase."""
        asked = GetCurves(uid=uid, metric=metric, phase=phase)
        seconds = max(self.timeout, RESUME_SECONDS)  # of each of many phases the last records are read
        return await self._ask(asked, RunCurves, source=uid, seconds=seconds, send=self._gather)


def _behind(asked: Watch, message: Followed) -> Watch:
    """What is asked for once this event has come. By the full uid: a later run may have the same beginning."""
    if not isinstance(message, RunEvent):
        return asked
    return msgspec.structs.replace(asked, uid=message.uid, after=message.seq)

"""The daemon's API: the executor's verbs, answered by the service `governor`.

Rules:
1. A request is answered at once, a result in parts; only `watch` stays open, with a keep-alive message every few
   seconds.
2. A submit, also of a run that resumes another, is in the journal before it is acknowledged; the client's key makes
   it idempotent.
3. A request that can't be carried out is answered with `Refused` and the exit code, and has changed nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from governor import logs
from governor.daemon.groups.reports import GroupReports
from governor.daemon.groups.verbs import Groups
from governor.daemon.queries import RunQueries
from governor.daemon.senders import Senders
from governor.daemon.steering import Steering
from governor.daemon.submission.allowed import AllowedEntries
from governor.daemon.submission.runs import Submissions
from governor.errors import (
    BadRequest,
    GovernorError,
    NotEnded,
    RecordDamaged,
    UsageError,
    refusal_of,
)
from governor.journal.schema import LARGEST
from governor.messages import (
    Abort,
    ChangeGroup,
    ChangeRun,
    ChangeWork,
    Continue,
    Done,
    Drain,
    ExecutorReply,
    Explain,
    GetCurves,
    GetGroup,
    GetStatus,
    ListFailures,
    ListFiles,
    ListRuns,
    PackageStored,
    Pause,
    Prune,
    ReadFile,
    ReadOutput,
    Reload,
    Results,
    Resume,
    ShutdownDaemon,
    Stop,
    StorePackage,
    Submit,
    SubmitGroup,
    Undrain,
    Watch,
    WatchEnd,
    WatchGroup,
    decode_request,
    encode,
)
from governor.messages.chunking import chunks, slices
from governor.network import roles
from governor.network.packages import PREFIX, PackageStore
from governor.runs.assignment import Assignment, Waiting
from governor.runs.record import failures
from governor.runs.record.result import (
    build_result,
    curves_of,
    whole_result,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.daemon.queries import DaemonState
    from governor.journal.journal import Journal
    from governor.journal.runs_table import RunLine
    from governor.messages import FailureList, RunCurves, RunResult
    from governor.runs.active_run import RunContext
    from transport.worker import Request

    _What: TypeAlias = tuple[str, int, tuple[str, ...]]
    """A run, the number of the last event that is known, and the kinds of interest."""
    _Following: TypeAlias = tuple[RunLine, int, list[list[bytes]]]

KEEP_ALIVE_SECONDS: Final = 5.0
BY: Final = "api"

S = TypeVar("S", Submit, SubmitGroup)

log = logs.get_logger()


class DaemonApi:
    def __init__(self, *, daemon: DaemonState, context: RunContext) -> None:
        self._daemon = daemon
        self._context = context
        self._journal: Journal = context.journal
        self._queries = RunQueries(daemon=daemon, context=context)
        self._allowed = AllowedEntries(context.journal.path.parent, lambda: daemon.config.entries.allow)
        self.steering = Steering(daemon=daemon, context=context, queries=self._queries, allowed=self._allowed)
        self._submissions = Submissions(
            daemon=daemon, context=context, queries=self._queries, allowed=self._allowed
        )
        self.groups = Groups(
            daemon=daemon,
            context=context,
            queries=self._queries,
            allowed=self._allowed,
            steering=self.steering,
            resume=partial(self._submissions.resume, of_group=True),
        )
        self._group_reports = GroupReports(daemon=daemon, context=context, queries=self._queries)
        self._senders = Senders()
        self._packages = PackageStore(context.journal.path.parent)
        self._readings: dict[_What, asyncio.Task[_Following]] = {}
        self._storing = asyncio.Lock()

    async def answer(self, request: Request) -> Sequence[bytes]:
        """Handles one request to the service `governor`."""
        try:
            return [encode(await self._answer(request))]
        except GovernorError as error:
            return [encode(refusal_of(error))]

    async def _answer(self, request: Request) -> ExecutorReply:  # noqa: C901, PLR0911, PLR0912  # one for each verb
        try:
            asked = decode_request(request.body[0])
        except (IndexError, msgspec.MsgspecError) as error:
            raise BadRequest(f"not understood, is the client of another version? ({error})") from error
        by = await self._senders.of(request)
        roles.require(by, asked)
        match asked:
            case StorePackage():
                return await self._store(asked)
            case Submit():
                return await self._submissions.submit(await self._located(asked), by)
            case SubmitGroup():
                return await self.groups.submit(await self._located(asked), by)
            case ChangeGroup():
                return await self.groups.change(asked, by)
            case GetGroup():
                return await self._group_reports.send(request, asked)
            case WatchGroup():
                return await self._group_reports.watch(request, asked)
            case Resume():
                return await self._submissions.resume(asked, by)
            case Watch():
                return await self._watch(request, asked)
            case GetStatus():
                return await self._queries.status(asked.uid)
            case ListRuns():
                return await self._queries.page(asked)
            case Abort():
                return await self.steering.abort(asked, by)
            case Pause():
                return await self.steering.pause(asked, by)
            case Continue():
                return await self.steering.go_on(asked, by)
            case ChangeWork():
                return await self.steering.change_work(asked, by)
            case ChangeRun():
                return await self.steering.change_run(asked, by)
            case Drain():
                return await self._daemon.draining.drain(asked, by)
            case Undrain():
                return await self._daemon.draining.undrain(asked, by)
            case ShutdownDaemon():
                return await self._daemon.draining.shut_down(asked, by)
            case Explain(uid=uid):
                return await self._queries.explain(uid)
            case ReadOutput():
                return await self._queries.output(asked)
            case ListFiles():
                return await self._queries.files(asked)
            case ReadFile():
                return await self._queries.file_piece(asked)
            case GetCurves():
                return await self._curves(request, asked)
            case Results(uid=uid, so_far=so_far):
                return await self._results(request, uid, so_far=so_far)
            case ListFailures():
                return await self._failures(request, asked)
            case Prune():
                log.info("prune.requested", **msgspec.structs.asdict(asked), by=by)
                return await self._daemon.prune(asked)
            case Reload():
                log.info("reload.requested", by=by)
                return await self._daemon.reload()
            case Stop(reason=reason):
                log.info("stop.requested", reason=reason, by=by)
                self._daemon.stop(reason)
                return Done()

    async def _store(self, part: StorePackage) -> PackageStored:
        self._daemon.require_room()
        store = partial(self._packages.store, part.digest, size=part.size, offset=part.offset, data=part.data)
        async with self._storing:
            return PackageStored(bytes=await asyncio.to_thread(store))

    async def _located(self, asked: S) -> S:
        """With the folder of its package, if it names one; with a copy of an empty one, where code is restricted."""
        if asked.folder.startswith(PREFIX):
            if asked.run.get("code") != "snapshot":
                raise UsageError("a run of a package has code: snapshot")
            folder = await asyncio.to_thread(self._packages.place_of, asked.folder)
            asked = msgspec.structs.replace(asked, folder=folder)
        if self._allowed.restricts:
            folder = await asyncio.to_thread(self._allowed.empty_folder)
            asked = msgspec.structs.replace(asked, run={**asked.run, "code": "snapshot"}, folder=folder)
        return asked

    # -- verbs -------------------------------------------------------------------------------------------------

    async def _watch(self, request: Request, asked: Watch) -> WatchEnd:
        after = asked.after
        if not 0 <= after < LARGEST:
            raise BadRequest(f"events are numbered from 1, and none is {after}")
        uid = (await self._journal.read(partial(self._queries.find, asked.uid))).uid
        now = asyncio.get_running_loop().time
        silent_until = now() + KEEP_ALIVE_SECONDS
        with self._journal.arrivals(uid) as arrived:
            while True:
                arrived.clear()
                row, after, parts = await self._read_on((uid, after, tuple(asked.kinds)))
                if parts:
                    for frames in parts:
                        await request.partial(*frames)
                    silent_until = now() + KEEP_ALIVE_SECONDS
                    continue
                if row.outcome is not None and row.ended_at is not None:
                    return WatchEnd(outcome=row.outcome)
                if not asked.follow:
                    return WatchEnd(outcome="in work")
                if damage := self._queries.damage_of(row):
                    raise RecordDamaged(uid, *damage.split(": ", 1))
                if self._daemon.is_stopping and self._queries.governor_of(uid) is None:
                    return WatchEnd(outcome="interrupted")
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(silent_until):
                        await arrived.wait()
                if now() >= silent_until:  # others than these may arrive all the time
                    await request.partial(b"")
                    silent_until = now() + KEEP_ALIVE_SECONDS

    async def _read_on(self, what: _What) -> _Following:
        """`_following`, read once for all watchers that the same event has woken: they all have asked when it begins, a turn later."""
        reading = self._readings.get(what)
        if reading is None:
            reading = self._readings[what] = asyncio.create_task(self._read_once(what), name="daemon.read_on")
        return await asyncio.shield(reading)

    async def _read_once(self, what: _What) -> _Following:
        # Who asks from here on may have been woken by an event that this reading does not find.
        del self._readings[what]
        return await self._journal.read(partial(self._following, *what))

    def _following(self, uid: str, after: int, kinds: tuple[str, ...]) -> _Following:
        """The run, the number up to which its events are read now, and those of them: of a run that has ended all there are. Blocks."""
        row = self._queries.find(uid)
        last = self._journal.last_event(uid) if kinds else after
        page = self._journal.events(uid, after=after, kinds=kinds)
        return row, page[-1].seq if page else max(after, last), list(chunks(encode(event) for event in page))

    async def _curves(self, request: Request, asked: GetCurves) -> Done:
        def found() -> RunCurves:
            row = self._queries.find_sound(asked.uid)
            return curves_of(self._journal, row, metric=asked.metric, phase=asked.phase)

        return await self._send(request, await asyncio.to_thread(found))

    async def _results(self, request: Request, uid: str, *, so_far: bool) -> Done:
        row = await self._journal.read(partial(self._queries.find_sound, uid))
        folder = self._context.run_folder(row.uid)
        result = await asyncio.to_thread(whole_result, self._journal, row.uid, folder)
        if result is None:
            now = await self._queries.status_of(row)
            if not so_far:
                raise NotEnded(row.uid, now.state)
            build = partial(build_result, journal=self._journal, outcome="in work", reason=now.state)
            assignment = await asyncio.to_thread(Assignment.of, row, Waiting(uid=row.uid))
            build = partial(build, assignment=assignment, folder=folder, seconds=now.seconds)
            result = await asyncio.to_thread(build)
        return await self._send(request, result)

    async def _failures(self, request: Request, asked: ListFailures) -> Done:
        if not 0 < asked.limit <= failures.LIST_LIMIT or not 0 <= asked.after < LARGEST:
            raise BadRequest(
                f"limit counts failures, from 1 to {failures.LIST_LIMIT}, and after numbers events from 1"
            )
        uid = (await self._journal.read(partial(self._queries.find, asked.uid))).uid
        page = partial(failures.page, phase=asked.phase, after=asked.after, limit=asked.limit)
        return await self._send(request, await asyncio.to_thread(page, self._journal, uid))

    @staticmethod
    async def _send(request: Request, answer: RunCurves | RunResult | FailureList) -> Done:
        """In parts: it may be large."""
        for part in slices(encode(answer)):
            await request.partial(part)
        return Done()

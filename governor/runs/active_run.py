"""One run in work: all that serves it, from its assignment until its slot is free again.

Rules:
1. Its parts (effects, report handler, liveness probe, resource meter) reach each other, and the state machine, through
   the run. They are made with it, so while there is a run all of them are there.
2. Its tasks end with it, except those that wait for a process that could not be killed. One that fails is logged and
   cancels nothing else.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec

from governor import logs
from governor.episodes.entries import in_daemon_thread
from governor.errors import JournalError, TryAgain
from governor.files import write_whole
from governor.messages import ConductorCommand, conductor_service, decode_command_reply, encode, run_service
from governor.metrics import Metrics
from governor.runs.effects import EffectRunner
from governor.runs.limits import RunLimits, limits_of
from governor.runs.liveness_probe import LivenessProbe
from governor.runs.progress import Progress
from governor.runs.record import code, environment
from governor.runs.record.usage import UsageRecorder
from governor.runs.report_handler import ReportHandler
from governor.runs.resource_usage import ConductorUsage, Meter
from governor.runs.run_log import RunLog
from governor.runs.services import Services
from governor.runs.variables import RunVariables
from states.events import ConductorReady, ContinueRequested, PartEnded, PauseRequested, PlanChangeRequested
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from governor.journal.journal import Journal
    from governor.logs import LogFormat
    from governor.messages import Alive, Done, Refused
    from governor.output.collector import Collector
    from governor.runs.assignment import Assignment
    from governor.runs.file_watch import FileWatch
    from governor.runs.run_changes import AcceptedChange
    from governor.runs.run_governor import RunGovernor
    from states import State, Step
    from states.events import Event
    from transport.access import Secret
    from transport.client import Client

REQUEST_CREDIT: Final = 64
ENVIRONMENT_SECONDS: Final = 10.0
"""A folder may be on a slow disk; the result of a run does not wait longer for what it was made with."""

log = logs.get_logger()


class RayProvider(Protocol):
    """Provides a Ray cluster to the task conductors."""

    async def settings(self) -> dict[str, Any]:
        """``{"address": "host:port", "token_path": path or None}``, once Ray can be reached. Raises ProcessError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What the daemon provides to its runs; it makes it once, and passes it to its governors.

    `client` is the daemon's client of its broker, at the private endpoint. `secret` is new at each start of the
    daemon. The folders exist and only the daemon can access them.
    """

    client_endpoint: str
    private_endpoint: str
    worker_endpoint: str
    secret: Secret
    client: Client
    journal: Journal
    files: FileWatch
    output: Collector
    ray: RayProvider
    runs_folder: Path
    runtime_folder: Path
    log_format: LogFormat
    log_level: str
    metrics: Metrics = field(default_factory=Metrics)

    def run_secret(self, uid: str) -> Secret:
        """The secret shared by the run's conductors and the daemon."""
        return self.secret.of(uid.encode())

    def run_folder(self, uid: str) -> Path:
        """The folder of the run's files."""
        return self.runs_folder / uid

    def socket_folder(self, uid: str) -> Path:
        """The folder of the run's sockets while it is in work."""
        return self.runtime_folder / uid


class ActiveRun:
    """`async with` prepares the run's folders, receives reports and watches the run; the effects of the state machine
    start its conductors.
    """

    def __init__(self, assignment: Assignment, *, context: RunContext, governor: RunGovernor) -> None:
        self.uid = assignment.uid
        self.assignment = assignment
        self.services = Services(assignment)
        self.variables = RunVariables(assignment)
        self.context = context
        self.governor = governor
        self.secret = context.run_secret(self.uid)
        self.folder = context.run_folder(self.uid)
        self.socket_folder = context.socket_folder(self.uid)
        self.dead_children: list[str] = []
        self.change: AcceptedChange | None = None
        """Of its run file, while that is being asked for."""
        self.log = RunLog(assignment, context.metrics)
        self.progress = Progress(assignment)
        self.limits = RunLimits(assignment.run.limits)
        self.usage = ConductorUsage()
        self.reports = ReportHandler(self)
        self.effects = EffectRunner(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._environment: asyncio.Task[None] | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises OSError when the run's folders can't be made, JournalError."""
        self.limits = await asyncio.to_thread(limits_of, self.assignment, self.context.journal)
        submitters = await self.context.journal.read(partial(self.context.journal.submitters, [self.uid]))
        self.log.submitted_by = submitters.get(self.uid, {})
        async with AsyncExitStack() as stack:
            for folder in (self.folder, self.socket_folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(self.context.files.watched(self))
            await self._write_run_file()  # which tells what is masked in its output
            await asyncio.to_thread(self.context.output.begin, self.folder)
            stack.push_async_callback(asyncio.to_thread, self.context.output.end, self.uid)
            await stack.enter_async_context(
                Worker(
                    self.context.worker_endpoint,
                    run_service(self.uid),
                    self.reports.answer,
                    credit=REQUEST_CREDIT,
                    secret=self.context.secret,
                    foreseen=[TryAgain],
                )
            )
            self.spawn(LivenessProbe(self).run(), "probe")
            self._meter = self.spawn(Meter(self).run(), "usage")
            self.spawn(UsageRecorder(self).run(), "usage_record")
            self._environment = self.spawn(self._record_environment(), "environment")
            self._open = stack.pop_all()
        return self

    async def _write_run_file(self) -> None:
        content = msgspec.json.format(msgspec.json.encode(self.assignment.run.raw()), indent=2)
        await asyncio.to_thread(write_whole, self.folder / "run.json", content)

    def stepped(self, before: State, event: Event, step: Step) -> None:
        """The machine has answered, and that is on record."""
        self.log.stepped(before, event, step)
        match event:
            case ConductorReady() | PartEnded():
                self.progress.changes += 1
            case PauseRequested(at=at):
                self.progress.pause(at)
            case ContinueRequested(at=at):
                self.progress.go_on(at)
            case PlanChangeRequested():
                self._adopt_change()
            case _:
                pass

    def _adopt_change(self) -> None:
        if self.change is None:
            return
        self.assignment, self.change = self.change.assignment, None
        self.progress.adopt(self.assignment)
        self.log.adopt(self.assignment)
        self.limits.set(self.assignment.run.limits)
        if self._meter.done():  # it had nothing to measure
            self._meter = self.spawn(Meter(self).run(), "usage")
        self.spawn(self._write_run_file(), "run_file")

    async def environment_recorded(self) -> None:
        """Waits until it is on record what the run was made with, or that takes too long."""
        if self._environment is not None:
            seconds = min(ENVIRONMENT_SECONDS, self.assignment.run.deadlines.finalize / 2)
            await asyncio.wait([self._environment], timeout=seconds)

    async def _record_environment(self) -> None:
        journal = self.context.journal
        try:
            first = await journal.read(partial(journal.events, self.uid, limit=1))
            submission = code.Submission.of(next(iter(first), None))
            look = partial(environment.record, self.folder, Path(self.assignment.folder), submission)
            changed = await in_daemon_thread(look, name="environment")
            if changed is not None:
                log.warning(code.CHANGED, run=self.uid, reason=code.sentence(changed))
                await journal.write(lambda transaction: transaction.event(self.uid, code.CHANGED, changed))
        except (OSError, JournalError) as error:  # a report without it
            log.info("environment.not_recorded", run=self.uid, reason=str(error))

    async def __aexit__(self, *_: object) -> None:
        """Cancels all tasks and waits for them, which is bounded."""
        self.effects.cancel_deadlines()
        pending = [*self._tasks]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._open.aclose()

    # -- for its parts -----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the machine."""
        return self.governor.state

    @property
    def stamp(self) -> tuple[str, float]:
        """The first two fields of an event of this run that happens now."""
        return self.uid, time.monotonic()

    def post(self, event: Event, detail: dict[str, Any] | None = None) -> None:
        """Puts an event into the inbox of the run governor."""
        self.governor.post(event, detail)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Runs `work` as a task until the run is over."""
        task: asyncio.Task[None] = asyncio.create_task(work, name=f"{self.uid}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def leave(self, task: asyncio.Task[None]) -> None:
        """Lets a task outlive the run."""
        self._tasks.discard(task)

    async def command(
        self, conductor: str, incarnation: int, command: ConductorCommand, *, seconds: float
    ) -> Done | Refused | Alive:
        """The conductor's answer to a command. Raises TransportError."""
        answer = await self.context.client.request(
            conductor_service(self.uid, conductor, incarnation),
            encode(command),
            self.secret.value,
            timeout=seconds,
            idempotent=True,
        )
        return decode_command_reply(self.variables.mask.packed(answer[0]))

    async def is_out_of_room(self) -> bool:
        """Whether the disk is full, which may have caused a failure. Writes a file, which takes some milliseconds."""
        return await asyncio.to_thread(lambda: self.context.journal.is_out_of_room)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("effect.failed", run=self.uid, effect=task.get_name(), exc_info=error)
            self.context.journal.make_room(error)

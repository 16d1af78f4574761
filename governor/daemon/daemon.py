"""The daemon: starts all its parts in the order in which they are needed, and stops them in reverse.

Rules:
1. READY is sent when runs can be accepted: journal open, forkserver warm, broker answering, API registered.
2. A stop interrupts the runs in order, informs watchers, then stops Ray, broker and forkserver. A second signal skips
   the grace periods.
3. A crash of a governor, or a broker that can't be kept alive, ends the daemon with 70; a full disk, a journal that
   can't be written, or removed files end it with 75: the next start continues where the journal ends.
4. The event loop itself feeds the watchdog: a daemon whose loop hangs is restarted.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from governor import config as config_module
from governor import logs
from governor.daemon import folders
from governor.daemon.api import DaemonApi
from governor.daemon.background import Background
from governor.daemon.broker_supervisor import BrokerProcess, broker_of, wait_until_answering
from governor.daemon.dispatcher import Dispatcher, Slots
from governor.daemon.draining import Draining
from governor.daemon.groups.limits import GroupLimits
from governor.daemon.hooks.sender import Sender
from governor.daemon.metrics.measurements import Measurements
from governor.daemon.metrics.server import MetricsServer
from governor.daemon.ray_supervisor import RayService
from governor.daemon.recovery import Recovery
from governor.daemon.run_queue import RunQueue
from governor.daemon.sharing.capacity import Sharing
from governor.daemon.sharing.shortage import Shortage
from governor.errors import ConfigError, ExitCode, FilesRemoved, GovernorError, ProcessError, UsageError
from governor.journal import disk_reserve, schema
from governor.journal.journal import Journal
from governor.journal.retention import Pruner, RetentionPolicy, requested_policy
from governor.locations import JOURNAL, RUNS
from governor.messages import SERVICE, Reloaded
from governor.network import listening
from governor.output.collector import Collector
from governor.processes import leftovers, process
from governor.runs.active_run import RunContext
from governor.runs.file_watch import FileWatch
from governor.runs.variables import mask_of
from transport.access import Secret
from transport.client import Client
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import ExitStack

    from governor.config import Config
    from governor.daemon.metrics.loop_time import TimedSelector
    from governor.daemon.systemd import SystemdNotifier
    from governor.messages import LoopTime, Prune, Pruned
    from governor.runs.assignment import Waiting
    from governor.runs.run_governor import RunGovernor

REQUEST_CREDIT: Final = 256
"""Requests to the API at once; an open `watch` holds one."""
REGISTER_SECONDS: Final = 10.0

log = logs.get_logger()


class Daemon:
    """`serve` until a signal, or `running` as a context within another event loop.

    `reload` reads the configuration again. `acquired_folders` are its folders, if they are acquired already. `held`
    are runs that can't be resumed yet, and what they wait for; `damaged` those that can't be resumed at all, and why.
    `selector` is that of the event loop, where it is the daemon's own. `governors` are its slots, by default new ones.
    """

    def __init__(
        self,
        *,
        config: Config,
        notifier: SystemdNotifier,
        reload: Callable[[], Config] | None = None,
        acquired_folders: ExitStack | None = None,
        selector: TimedSelector | None = None,
        governors: Sequence[RunGovernor] = (),
    ) -> None:
        self.config = config
        self._selector = selector
        self._folders = acquired_folders
        self._reload = reload
        self.governors = [*governors]
        self.limits = GroupLimits(lambda: self.governors)
        self.queue = RunQueue(limit=config.queue_limit, rules=[self.limits])
        self.sharing = Sharing(self.queue, config, slots=lambda: self.governors)
        self._notifier = notifier
        self._background = Background(state_dir=config.state_dir)
        self.journal_folder = config.state_dir
        self._signals, self._refused = 0, ""
        self.held: Mapping[str, str] = {}
        self.damaged: dict[str, str] = {}
        self.is_stopping = False
        self.api: DaemonApi
        self.draining: Draining
        self.hooks: Sender
        self._dispatcher: Dispatcher
        self._broker: BrokerProcess
        self._slots: Slots
        self._reserve: disk_reserve.Reserve
        self._pruner: Pruner
        self._recovery: Recovery

    def dispatch(self) -> None:
        self._dispatcher.wake()

    async def serve(self) -> ExitCode:
        """Serves until SIGTERM or SIGINT and returns the exit code. Raises the error that prevents a start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGUSR1, self._dump)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        async with self.running():
            await self._background.stop.wait()
        crash = self._background.crash
        self._notifier.status("stopped" if crash is None else str(crash) or repr(crash))
        if isinstance(crash, GovernorError):
            return crash.exit_code
        return ExitCode.DONE if crash is None else ExitCode.INTERNAL

    async def crash(self) -> BaseException:
        """Returns the error that ends the daemon, once there is one; for users of `running`."""
        await self._background.stop.wait()
        return self._background.crash or RuntimeError("the daemon was stopped")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Daemon]:
        """Inside the context all parts run; after it nothing is left behind."""
        async with AsyncExitStack() as stack:
            config, background = self.config, self._background
            gc.disable()  # a start makes much that stays: half of its time went into looking through that
            stack.callback(gc.enable)
            stack.enter_context(self._folders or folders.acquired(config))
            folders.warn_if_shared(config.state_dir)
            leftovers.warn_if_unmarked()
            extending = await stack.enter_async_context(
                background.running(self._notifier.keep_extending(), "extend")
            )
            journal = await self._open_journal(stack)
            recovery = self._recovery = Recovery(journal=journal, state_dir=config.state_dir)
            self.held, self.damaged = recovery.held, recovery.damaged
            self._dispatcher = Dispatcher(
                self.queue, self.sharing.machine, damaged=self.damaged, may_begin=self._may_begin
            )
            await recovery.clean_up()
            await stack.enter_async_context(
                recovery.heartbeat.beating(in_order=lambda: background.is_in_order)
            )
            stack.enter_context(folders.cleared(config.runtime_dir))
            context = await self._open(stack, journal)
            slots = self._slots = Slots(
                self.governors, context, govern=self._govern, changed=self._changed, failed=background.fail
            )
            slots.resize(len(self.governors) or config.slots)
            for run in await recovery.assignments(context.runs_folder):
                self.queue.append(run)
            if recovery.survivors:
                background.spawn(self._enqueue(recovery.held_assignments(context.runs_folder)), "recovery")
            slots.begin()
            background.spawn(self._dispatcher.run(slots, journal), "dispatch")
            background.spawn(context.files.run(), "file_watch")
            background.spawn(Shortage(lambda: self.config, lambda: self.governors).watch(), "shortage")
            self._pruner = Pruner(context.journal, context.runs_folder)
            background.spawn(self._pruner.serve(lambda: self._retention), "prune")
            self.api = DaemonApi(daemon=self, context=context)
            background.spawn(self.api.groups.serve(), "groups")
            background.spawn(self.hooks.serve(), "hooks")
            await self.register(stack, config.worker_endpoint, SERVICE, context.secret)
            if config.metrics.listen is not None:
                measure = Measurements(self, context, broker=self._broker, selector=self._selector)
                listening = MetricsServer(config.metrics.listen, measure, group=config.socket_group)
                await stack.enter_async_context(listening)
            self.dispatch()
            gc.freeze()  # loaded modules are never freed: collections skip them
            gc.enable()
            if self._selector is not None:
                self._selector.begin()
            extending.cancel()
            self._announce()
            background.spawn(self._notifier.keep_watched(), "watchdog")
            try:
                yield self
            finally:
                await self._shut_down(context)

    async def register(self, into: AsyncExitStack, uri: str, service: str, secret: Secret | None) -> None:
        """Raises TimeoutError when no broker registers the service."""
        worker = Worker(uri, service, self.api.answer, credit=REQUEST_CREDIT, secret=secret)
        await into.enter_async_context(worker)
        async with asyncio.timeout(REGISTER_SECONDS):
            await worker.registered()

    async def _enqueue(self, found: Awaitable[list[Waiting]]) -> None:
        for run in await found:
            self.queue.append(run)
        self.dispatch()

    def requeue(self, uid: str, left: asyncio.Event) -> None:
        """Queues a run again that is being interrupted, once it has `left` its slot."""
        runs = self._recovery.again(uid, self.config.state_dir / RUNS, after=left)
        self._background.spawn(self._enqueue(runs), f"requeue.{uid}")

    async def _open_journal(self, stack: AsyncExitStack) -> Journal:
        folder, loop = self.config.state_dir, asyncio.get_running_loop()
        reserve = self._reserve = disk_reserve.Reserve(
            folder,
            on_used=lambda full: loop.call_soon_threadsafe(self._background.fail, full),
            sockets=self.config.runtime_dir,
        )
        reserve.take()
        stack.callback(reserve.release)
        path = self.journal_folder / JOURNAL
        await asyncio.to_thread(schema.examine, path)
        journal = Journal(path, reserve=reserve, on_unreadable=self._background.fail)
        stack.push_async_callback(journal.close)
        await self.limits.load(journal)
        self.hooks = Sender(journal, self.config.hooks)
        self.draining = Draining(journal, is_idle=self._is_idle, end=self.end, changed=self._drained)
        await self.draining.load()
        return journal

    async def _open(self, stack: AsyncExitStack, journal: Journal) -> RunContext:
        config = self.config
        runs = config.state_dir / RUNS
        folders.make_private(runs)
        ray = RayService(config.ray, state_folder=config.state_dir, runtime_folder=config.runtime_dir)
        forkserver = await process.warm()
        if forkserver.failures:
            log.warning("forkserver.not_preloaded", failures=forkserver.failures)
        secret = Secret.new()
        self._broker = broker_of(config, secret, await asyncio.to_thread(listening.settings_of, config))
        await stack.enter_async_context(self._background.running(self._broker.run(), "broker"))
        client = await stack.enter_async_context(Client(config.private_endpoint))
        await wait_until_answering(client)
        stack.push_async_callback(ray.aclose)
        output = Collector(
            runs, lambda: self.config.logs, reserve=lambda: self.config.disk_reserve, mask_of=mask_of
        )
        self._reserve.relieve = output.relieve
        stack.push_async_callback(asyncio.to_thread, output.close)
        return RunContext(
            client_endpoint=config.client_endpoint,
            private_endpoint=config.private_endpoint,
            worker_endpoint=config.worker_endpoint,
            secret=secret,
            client=client,
            journal=journal,
            files=FileWatch(journal.path, runtime=config.runtime_dir, on_lost=self._background.fail),
            output=output,
            ray=ray,
            runs_folder=runs,
            runtime_folder=config.runtime_dir,
            log_format=config.log_format or logs.choose_format(),
            log_level=config.log_level,
        )

    async def _shut_down(self, context: RunContext) -> None:
        self.is_stopping = True
        grace = self.config.stop_grace
        self._notifier.stopping("interrupting the runs in work", grace=grace)
        log.info("daemon.stopping", runs=[g.experiment_run_id for g in self.governors if g.experiment_run_id])
        urgent, crash = self._signals > 1, self._background.crash
        why = f": {crash}" if isinstance(crash, ProcessError | FilesRemoved) else ""
        await self._slots.stop(f"the daemon is shutting down{why}", urgent=urgent, grace=grace)
        context.journal.wake_followers()
        self.limits.moved()
        await self._background.cancel_all()

    async def _govern(self, governor: RunGovernor) -> None:
        try:
            await governor.handle_events()
        except Exception as error:  # noqa: BLE001  # logged by the governor; it ends the daemon
            self._background.crashed(error)

    def _may_begin(self) -> bool:
        return not (self.is_stopping or self.draining.waits_for)

    def _is_idle(self) -> bool:
        return not any(each.experiment_run_id for each in self.governors)

    def _drained(self) -> None:
        self.dispatch()
        self._notifier.status(self._status)

    @property
    def _retention(self) -> RetentionPolicy:
        return RetentionPolicy(runs=self.config.keep_runs, days=self.config.keep_days)

    async def prune(self, asked: Prune) -> Pruned:
        """Raises UsageError when neither the request nor the configuration says what to keep."""
        retention = requested_policy(asked.keep_runs, asked.keep_days, otherwise=self._retention)
        return await self._pruner.prune(retention, dry_run=asked.dry_run)

    def loop_time(self) -> LoopTime | None:
        """None where the event loop is another's."""
        return None if self._selector is None else self._selector.loop_time

    def require_room(self) -> None:
        """Raises NoRoom when another run should not be accepted."""
        disk_reserve.require(self.config.state_dir, self.config.disk_reserve)

    def _changed(self, governor: RunGovernor) -> None:
        self.limits.moved(is_free=governor.is_free)
        if governor.is_free:
            self._slots.end_if_free(governor)
            self.dispatch()
            self._pruner.wake()
            self.draining.end_if_idle()
        self._notifier.status(self._status)

    @property
    def _status(self) -> str:
        in_work = [f"{g.experiment_run_id} {g.state.name}" for g in self.governors if g.experiment_run_id]
        drained = "" if self.draining.state == "serving" else f"; {self.draining.state}"
        return f"{', '.join(in_work) or 'no run in work'}; {len(self.queue)} queued{drained}{self._refused}"

    def _announce(self) -> None:
        self._notifier.ready(self._status)
        config, slots, queued = self.config, len(self.governors), len(self.queue)
        where = {"endpoint": config.client_endpoint, "network": config.network.listen}
        log.info("daemon.ready", **where, slots=slots, queued=queued, state_dir=str(config.state_dir))

    def _on_signal(self, number: int) -> None:
        """The first signal stops in order; a second one, or SIGQUIT, skips the grace periods."""
        self._signals += 2 if number == signal.SIGQUIT else 1
        log.info("daemon.signal", signal=signal.Signals(number).name)
        if self._signals > 1:
            for governor in self.governors:
                governor.post_stop(f"{signal.Signals(number).name} again", urgent=True)
        self._background.stop.set()

    def _on_hangup(self) -> None:
        """SIGHUP: reloads the configuration. All or nothing: one setting that needs a restart refuses the whole."""
        if self._reload is None:
            self._on_signal(signal.SIGHUP)
        else:
            self._background.spawn(self._reload_and_tell(), "reload")

    async def _reload_and_tell(self) -> None:
        self._notifier.reloading()
        with suppress(ConfigError):  # it is in the log and the status
            await self.reload()
        self._notifier.ready()

    async def reload(self) -> Reloaded:
        """Reloads the configuration. Raises ConfigError with all faults, then nothing has changed; UsageError when
        there is no configuration to reload.
        """
        if self._reload is None:
            raise UsageError("this daemon was started without a configuration that can be reloaded")
        try:
            wanted = self._reload()
            changed = config_module.changed(self.config, wanted)
            members = await asyncio.to_thread(listening.members_of, wanted)
        except ConfigError as error:
            log.error("daemon.reload_refused", faults=list(error.faults))  # noqa: TRY400  # the faults are complete
            self._refused = f"; reload refused: {', '.join(error.faults)}"
            raise
        else:
            changed += ("keys",) if await self._broker.admit(members) else ()
            log.info("daemon.reloaded", changed=list(changed))
            self.config, self._refused = wanted, ""
            self.sharing.apply(wanted)
            self.hooks.apply(wanted.hooks)
            self._slots.resize(wanted.slots)
            self.dispatch()
            self._pruner.wake()
            return Reloaded(changed=changed)
        finally:
            self._notifier.status(self._status)

    def end(self, reason: str) -> None:
        """As the first signal does."""
        if not self._background.stop.is_set():
            log.info("daemon.ending", reason=reason)
        self._background.stop.set()

    def stop(self, reason: str) -> None:  # noqa: ARG002  # a RunGovernor that was built by itself needs it
        """Raises UsageError: `shutdown` or a signal ends a daemon."""
        raise UsageError("a daemon has no runs of its own to abort: `governor shutdown` or SIGTERM ends it")

    def _dump(self) -> None:
        log.info(
            "daemon.dump",
            governors=[repr(governor) for governor in self.governors],
            waits_for=[governor.state.waits_for for governor in self.governors],
            queue=self.queue.uids(),
            tasks=sorted(task.get_name() for task in asyncio.all_tasks()),
        )

"""The daemon's API over a real broker, with an executor as its client and a stand-in for the daemon without slots."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from governor import config
from governor.config import LogsConfig
from governor.daemon.api import DaemonApi
from governor.daemon.draining import Draining
from governor.daemon.groups.limits import GroupLimits
from governor.daemon.run_queue import RunQueue
from governor.daemon.sharing.capacity import Sharing
from governor.errors import ConfigError
from governor.executor import Executor
from governor.journal import disk_reserve
from governor.journal.journal import Journal
from governor.journal.retention import Pruner, RetentionPolicy
from governor.messages import (
    SERVICE,
    TaskRecord,
)
from governor.output.collector import Collector
from governor.runs.active_run import RunContext
from transport.access import Access, Secret
from transport.broker import Broker, BrokerSettings
from transport.client import Client
from transport.worker import Worker

TOLD = Access(stamped=frozenset({SERVICE.encode()}))
TWO = {"name": "r", "phases": [{"name": "p", "tasks": [{"id": n, "call": "m:f"} for n in ("t", "u")]}]}
RUN = {"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f"}]}]}


def done(task, outcome="succeeded", value=None):
    return TaskRecord(task=task, run=0, outcome=outcome, attempts=1, seconds=0.1, value=value)


CONFIG = config.load(
    options={"state_dir": "/s", "runtime_dir": "/r", "queue_limit": 3, "machine.cpus": 4, "machine.gpus": 2}
)


class DaemonStandIn:
    """A daemon without slots: submitted runs stay in the queue."""

    def __init__(self):
        self.config = CONFIG
        self.governors = []
        self.limits = GroupLimits(lambda: self.governors)
        self.queue = RunQueue(limit=3, rules=[self.limits])
        self.sharing = Sharing(self.queue, CONFIG, slots=lambda: self.governors)
        self.held = {}
        self.damaged = {}
        self.is_stopping = False
        self.dispatched = 0
        self.ended = []
        self.disk_reserve = 0

    def dispatch(self):
        self.dispatched += 1

    def loop_time(self):
        return None

    def require_room(self):
        disk_reserve.require(self.runs, self.disk_reserve)

    async def reload(self):
        raise ConfigError("g.toml", ["slots: no", "slot: no"])

    async def prune(self, asked):
        return await self.pruner.prune(
            RetentionPolicy(runs=asked.keep_runs, days=asked.keep_days), dry_run=asked.dry_run
        )


@contextlib.asynccontextmanager
async def open_api(network=None):
    """A daemon stand-in, with an `executor` that is connected to its API; with settings of a `network` it is reached through that, too."""
    with tempfile.TemporaryDirectory(prefix="fd-", dir="/tmp") as name:
        folder = Path(name)
        client, worker = f"ipc://{folder}/c", f"ipc://{folder}/w"
        async with contextlib.AsyncExitStack() as stack:
            settings = BrokerSettings(
                client_endpoint=client, worker_endpoint=worker, access=TOLD, network=network
            )
            broker = await stack.enter_async_context(Broker(settings))
            journal = Journal(folder / "governor.db")
            stack.push_async_callback(journal.close)
            own = await stack.enter_async_context(Client(client))
            output = Collector(folder, LogsConfig)
            stack.callback(output.close)
            site = RunContext(
                client_endpoint=client,
                private_endpoint=client,
                worker_endpoint=worker,
                secret=Secret.new(),
                client=own,
                journal=journal,
                files="not watched",
                output=output,
                ray="not started",
                runs_folder=folder,
                runtime_folder=folder,
                log_format="json",
                log_level="info",
            )
            daemon = DaemonStandIn()
            daemon.journal = journal
            daemon.draining = Draining(
                journal, is_idle=lambda: True, end=daemon.ended.append, changed=daemon.dispatch
            )
            daemon.client = own
            daemon.network_endpoint = broker.network_endpoint
            daemon.runs = folder
            daemon.pruner = Pruner(journal, folder)
            await daemon.limits.load(journal)
            served = daemon.api = DaemonApi(daemon=daemon, context=site)
            await stack.enter_async_context(Worker(worker, SERVICE, served.answer, credit=16))
            daemon.executor = await stack.enter_async_context(Executor(client, timeout=30.0, patience=0.3))
            yield daemon

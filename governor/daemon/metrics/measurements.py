"""The figures of the daemon that are measured when a monitoring system asks: runs, queue, event loop, broker, disk, process.

Rule: what does not answer soon is left out: a broker that is being replaced, a disk that hangs.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor import clock
from governor.episodes.entries import in_daemon_thread
from governor.metrics import Values, histogram
from governor.processes import kill_tree
from governor.version import __version__
from states import Running
from transport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.daemon.broker_supervisor import BrokerProcess
    from governor.daemon.metrics.loop_time import TimedSelector
    from governor.daemon.queries import DaemonState
    from governor.metrics import Measured
    from governor.runs.active_run import RunContext

BROKER_SECONDS: Final = 2.0
DISK_SECONDS: Final = 1.0
BROKER: Final = {
    "requests": "broker_requests",
    "request_bytes": "broker_request_bytes",
    "reply_bytes": "broker_reply_bytes",
    "queued": "broker_queued_requests",
    "in_flight": "broker_requests_in_flight",
    "pending": "broker_pending_replies",
    "connections": "broker_connections",
    "workers": "broker_workers",
}
"""Families by the broker's own names."""
REFUSED: Final = {
    "malformed": "malformed",
    "not_permitted": "not_permitted",
    "registrations_refused": "registration",
    "connections_refused": "connection",
    "slow_client_drops": "slow_client",
    "undeliverable": "unreachable",
    "dropped_plain": "without_envelope",
}


class Measurements:
    """`selector` is that of the daemon's event loop, if that is its own."""

    def __init__(
        self,
        daemon: DaemonState,
        context: RunContext,
        *,
        broker: BrokerProcess | None,
        selector: TimedSelector | None,
    ) -> None:
        self._daemon = daemon
        self._context = context
        self._broker = broker
        self._selector = selector
        self._on_disk: asyncio.Future[dict[str, float]] | None = None

    async def __call__(self) -> Measured:
        found: dict[str, float | Values] = {**self._context.metrics.measured(), "build": {__version__: 1}}
        found |= self._runs()
        output = self._context.output
        found["output_lines"] = {"kept": output.kept_lines, "dropped": output.dropped_lines}
        found["output_dropped_bytes"] = output.dropped_bytes
        found["oldest_queued_seconds"] = await self._oldest_queued()
        if self._selector is not None:
            loop = self._selector.loop_time
            found["event_loop_busy_seconds"] = loop.busy
            found["event_loop_longest_stretch_seconds"] = loop.longest
            found["event_loop_stretch_seconds"] = histogram(self._selector.stretches, total=loop.busy)
        return found | await self._of_broker() | await self._of_disk() | _of_process()

    def _runs(self) -> dict[str, float | Values]:
        daemon = self._daemon
        states = Counter(slot.state.name for slot in daemon.governors if slot.experiment_run_id is not None)
        states.pop("pristine", None)
        slots = Counter(
            "quarantined" if slot.quarantine else "free" if slot.is_free else "busy"
            for slot in daemon.governors
        )
        return {
            "runs": {
                **states,
                "queued": len(daemon.queue),
                "held": len(daemon.held),
                "damaged": len(daemon.damaged),
            },
            "slots": slots,
            "runs_stalled": sum(
                isinstance(slot.state, Running) and slot.state.stalled is not None
                for slot in daemon.governors
            ),
        }

    async def _oldest_queued(self) -> float:
        if (first := self._daemon.queue.first()) is None:
            return 0.0
        row = await self._context.journal.read(partial(self._context.journal.line, first.uid))
        return 0.0 if row is None else max(0.0, clock.wall() - row.submitted_at)

    async def _of_broker(self) -> dict[str, float | Values]:
        restarts: dict[str, float | Values] = (
            {} if self._broker is None else {"broker_restarts": self._broker.restarts}
        )
        try:
            _, packed = await self._context.client.request(
                "mmi.counters", timeout=BROKER_SECONDS, idempotent=True
            )
            counters: Mapping[str, int] = msgspec.msgpack.decode(packed, type=dict[str, int])
        except (TransportError, ValueError, msgspec.MsgspecError):
            return restarts | {"broker_up": 0}
        found: dict[str, float | Values] = {
            family: counters[name] for name, family in BROKER.items() if name in counters
        }
        refused = {reason: counters[name] for name, reason in REFUSED.items() if name in counters}
        return restarts | {"broker_up": 1, **found, "broker_refused": refused}

    async def _of_disk(self) -> dict[str, float]:
        """A disk that hangs holds up one thread, however often it is asked."""
        if self._on_disk is None or self._on_disk.done():
            measuring = partial(_measure_disk, self._context.journal.path)
            self._on_disk = asyncio.ensure_future(in_daemon_thread(measuring, name="disk"))
        await asyncio.wait({self._on_disk}, timeout=DISK_SECONDS)
        if not self._on_disk.done() or self._on_disk.exception() is not None:
            return {}
        return self._on_disk.result()


def _measure_disk(journal: Path) -> dict[str, float]:
    sizes = (path.stat().st_size for path in (journal, Path(f"{journal}-wal")) if path.exists())
    return {"journal_bytes": sum(sizes), "state_free_bytes": shutil.disk_usage(journal.parent).free}


def _of_process() -> dict[str, Any]:
    """From /proc, which is memory of the kernel."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    fields = kill_tree.read_stat(Path("/proc/self"))
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "virtual_memory_bytes": int(fields[20]),
        "resident_memory_bytes": int(fields[21]) * page,
        "start_time_seconds": int(boot.split()[1]) + int(fields[19]) / ticks,
        "open_fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }

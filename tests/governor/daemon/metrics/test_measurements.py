"""What a daemon measures when it is asked for its metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from governor import clock
from governor.daemon.metrics.loop_time import TimedSelector
from governor.daemon.metrics.measurements import Measurements
from governor.daemon.run_queue import RunQueue
from governor.journal.journal import Journal
from governor.metrics import Metrics
from governor.runs.assignment import Waiting
from states import Pristine
from tests.states.state_scenes import running
from transport.broker import Broker, BrokerSettings
from transport.client import Client


def slot(state, run=None):
    return SimpleNamespace(state=state, experiment_run_id=run, quarantine="", is_free=run is None)


async def test_all_that_can_be_measured_is_there(tmp_path, monkeypatch):
    ends = [f"ipc://{tmp_path}/{name}" for name in ("c", "w", "p")]
    settings = BrokerSettings(client_endpoint=ends[0], worker_endpoint=ends[1], private_endpoint=ends[2])
    journal = Journal(tmp_path / "governor.db")
    queue = RunQueue(limit=9)
    daemon = SimpleNamespace(
        governors=[slot(Pristine()), slot(replace(running().state, stalled=1.0), "r2")],
        queue=queue,
        held={"r3": "a process"},
        damaged={},
    )
    async with Broker(settings), Client(ends[2]) as private, Client(ends[0]) as public, asyncio.timeout(30):
        output = SimpleNamespace(kept_lines=5, dropped_lines=2, dropped_bytes=90)
        context = SimpleNamespace(metrics=Metrics(), journal=journal, client=private, output=output)
        measure = Measurements(daemon, context, broker=SimpleNamespace(restarts=3), selector=TimedSelector())
        await journal.write(lambda tx: tx.submit(uid="r1", key=None, name="n", spec={}, folder="/"))
        queue.append(Waiting(uid="r1"))
        now = clock.wall()
        monkeypatch.setattr(clock, "wall", lambda: now + 60)
        found = await measure()
        assert found["runs"] == {"running": 1, "queued": 1, "held": 1, "damaged": 0}
        assert found["slots"] == {"free": 1, "busy": 1}
        assert 60 <= found["oldest_queued_seconds"] < 90
        assert (found["broker_up"], found["broker_restarts"], found["broker_requests"]) == (1, 3, 1)
        assert found["broker_refused"]["malformed"] == 0
        assert found["journal_bytes"] >= (tmp_path / "governor.db").stat().st_size
        assert found["state_free_bytes"] > 0
        assert (found["output_lines"], found["output_dropped_bytes"]) == ({"kept": 5, "dropped": 2}, 90)
        assert found["runs_stalled"] == 1
        assert found["open_fds"] > 3
        assert set(found["event_loop_stretch_seconds"]) >= {"_sum", "_count", '_bucket{le="+Inf"}'}
        # Executors, who share a socket with everybody, are not told.
        assert await public.request("mmi.counters", timeout=10) == [b"501"]
    context.client = SimpleNamespace(request=_unreachable)
    found = await measure()
    assert found["broker_up"] == 0
    assert "broker_requests" not in found
    await journal.close()


async def _unreachable(*_, **__):
    from transport.errors import TransportError

    raise TransportError("gone")

"""After an earlier invocation, or a hard pause: a paused run waits in the queue."""

from __future__ import annotations

import asyncio

import pytest

from governor.daemon.recovery import Recovery
from governor.run_file.load import parse

RUN = parse({"name": "r", "phases": [{"name": "a", "tasks": [{"id": "t", "call": "m:f"}]}]}, "r").raw()
ASSIGNED = ("run.assigned", {"at": 100.0})
STOPPED = (("traces.removed", {"at": 130.0}), ("run.interrupted", {"reason": "going down"}))


@pytest.fixture(autouse=True)
async def r1(journal):
    await journal.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=RUN, folder="/"))


async def record(journal, *events):
    def change(tx):
        tx.started("r1")
        for kind, data in events:
            tx.event("r1", kind, data)

    await journal.write(change)


@pytest.mark.parametrize(
    ("told", "pause"),
    [
        ([], None),
        ([("run.pause_requested", {"reason": "a guest", "at": 110.0})], "a guest"),
        ([("run.pause_requested", {"reason": "", "at": 110.0})], ""),
        (
            [
                ("run.pause_requested", {"reason": "a guest", "at": 110.0}),
                ("run.continue_requested", {"at": 120.0}),
            ],
            None,
        ),
    ],
)
async def test_a_paused_run_is_queued_as_such(journal, tmp_path, told, pause):
    await record(journal, ASSIGNED, *told, *STOPPED)
    recovery = Recovery(journal=journal, state_dir=tmp_path)
    await recovery.clean_up()
    [waiting] = await recovery.assignments(tmp_path / "runs")
    assert waiting.pause == pause
    assert waiting.worked == (30.0 if pause is None and not told else 20.0 if pause is None else 10.0)


async def test_a_run_that_was_interrupted_by_itself_is_queued_again(journal, tmp_path):
    recovery = Recovery(journal=journal, state_dir=tmp_path)
    await recovery.clean_up()
    left = asyncio.Event()
    again = asyncio.create_task(recovery.again("r1", tmp_path / "runs", after=left))
    await record(journal, ASSIGNED, ("run.pause_requested", {"reason": "a guest", "at": 110.0}), *STOPPED)
    left.set()
    [waiting] = await again
    assert (waiting.uid, waiting.pause, waiting.worked) == ("r1", "a guest", 10.0)

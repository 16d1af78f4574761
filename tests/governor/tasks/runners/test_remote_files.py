"""What is too large to be read or written costs its run, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from governor.tasks.protocol.wire import (
    File,
    Input,
    Over,
    WorkItem,
)
from governor.tasks.runners import remote_files


def no_room(*_):
    raise MemoryError("no room")


def test_inputs_that_do_not_fit_into_memory_fail_their_run(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_bytes", no_room)
    inputs = {"a": [Input(file="a.json")]}
    work = WorkItem(ticket=1, batch=1, task="t", runs=(0, 1), attempt=1, call="m:f", inputs=inputs)
    refused = remote_files.with_files(work, tmp_path)
    assert (refused.ticket, refused.runs, refused.inputs) == (1, (0, 1), {})
    assert refused.args["why"].endswith("MemoryError: no room")


@pytest.mark.asyncio
async def test_results_that_do_not_fit_into_memory_fail_their_run(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "write_whole", no_room)
    received = []
    receiver = remote_files.FileReceiver(
        folder=tmp_path,
        deliver=received.extend,
        track=lambda work, name: asyncio.create_task(work, name=name),
    )
    bad, good = Over(1, 0, 0.0, 0.0, value_file="t.json"), Over(1, 1, 0.0, 0.0)
    receiver.receive([File("t.json", b"1"), bad, good])
    await receiver.drained()
    assert [over.error for over in received] == ["its result cannot be written: MemoryError: no room", ""]

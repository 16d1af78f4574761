"""Memory and disk that run short: which run ends, and when. The cgroup is a folder with the kernel's files, the disk has as much left as a
test says.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from governor.daemon.sharing import shortage
from governor.daemon.sharing.shortage import Shortage
from states.at_work import AtWork
from states.events import LimitExceeded

MIB = 1 << 20
RESERVE = 64 * MIB


class Slot:
    """A slot whose run is at work; it keeps what is posted."""

    def __init__(self, folder, uid):
        self.experiment_run_id = uid
        self.posted = []
        self.uid = uid
        self.folder = folder / uid
        self.folder.mkdir()
        self.state = AtWork.__new__(AtWork)
        self.effects = SimpleNamespace(processes={})
        self.stamp = (uid, 1.0)

    def in_work(self, uid):
        assert uid == self.experiment_run_id
        return self

    def post(self, event):
        self.posted.append(event)

    def write(self, mebibytes):
        with (self.folder / "steps").open("ab") as file:
            file.write(bytes(mebibytes * MIB))


@pytest.fixture
def group(tmp_path):
    folder = tmp_path / "group"
    folder.mkdir()
    return folder


def memory(group, *, limit, current, inactive=0):
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\n")


@pytest.fixture
def world(tmp_path, group, monkeypatch):
    slots = [Slot(tmp_path, "one"), Slot(tmp_path, "two")]
    config = SimpleNamespace(state_dir=tmp_path, disk_reserve=RESERVE)
    made = SimpleNamespace(slots=slots, left=10 * RESERVE, sizes={})
    monkeypatch.setattr(shortage.shutil, "disk_usage", lambda _: SimpleNamespace(free=made.left))
    monkeypatch.setattr(shortage, "run_pids", lambda marks: marks)
    made.shortage = Shortage(lambda: config, lambda: slots, group=group)
    return made


def ended(world):
    """The runs that were told to end, and why, since the last call."""
    found = [event for slot in world.slots for event in slot.posted]
    for slot in world.slots:
        slot.posted.clear()
    assert all(isinstance(event, LimitExceeded) for event in found)
    return [(event.run, event.limit, event.reached) for event in found]


async def left(world, mebibytes):
    world.left = mebibytes * MIB
    await world.shortage.look()
    return ended(world)


async def test_the_run_that_has_taken_most_since_the_reserve_was_touched_ends(world):
    one, two = world.slots
    one.write(40)  # long ago
    assert await left(world, 65) == []
    assert await left(world, 60) == []
    two.write(20)
    one.write(8)
    assert await left(world, 33) == []
    assert await left(world, 31) == [("two", "room on the disk", 31 * MIB)]
    assert await left(world, 30) == [], "it is ending"


async def test_another_one_ends_once_half_of_what_was_left_is_gone_too(world):
    one, two = world.slots
    await left(world, 60)
    two.write(30)
    assert [uid for uid, *_ in await left(world, 30)] == ["two"]
    two.experiment_run_id = None
    one.write(10)
    assert await left(world, 20) == []
    assert [uid for uid, *_ in await left(world, 14)] == ["one"]


async def test_no_run_ends_for_what_others_have_written(world):
    one, _ = world.slots
    await left(world, 60)
    one.write(5)
    assert await left(world, 30) == []
    one.write(10)
    assert [uid for uid, *_ in await left(world, 14)] == ["one"], "what it has written since that look"


async def test_that_the_reserve_is_touched_is_told_once_a_minute(world):
    world.slots[1].write(3)
    with capture_logs() as told:
        for mebibytes in (65, 60, 70, 60, 59):
            await left(world, mebibytes)
        told_first = [entry for entry in told if entry["event"] == "disk.reserve_touched"]
        world.shortage._tell_again = 0.0
        await left(world, 70)
        await left(world, 60)
    assert [(entry["left"], entry["sizes"]["two"] >= 3 * MIB) for entry in told_first] == [(60 * MIB, True)]
    assert len([entry for entry in told if entry["event"] == "disk.reserve_touched"]) == 2


async def test_once_there_is_room_again_the_runs_begin_anew(world):
    one, two = world.slots
    await left(world, 60)
    two.write(30)
    assert await left(world, 70) == []
    one.write(10)
    assert await left(world, 40) == []
    one.write(10)
    assert [uid for uid, *_ in await left(world, 31)] == ["one"]


async def test_a_full_disk_is_left_to_the_reserve(world):
    await left(world, 60)
    world.slots[0].write(60)
    assert await left(world, 1) == []


async def test_a_run_that_is_ending_is_not_ended(world):
    _, two = world.slots
    await left(world, 60)
    two.write(30)
    two.state = None
    assert await left(world, 30) == []


async def test_the_run_with_most_memory_ends_and_the_next_one_only_when_it_is_gone(world, group, monkeypatch):
    monkeypatch.setattr(shortage, "memory_of", lambda pids: world.sizes[next(iter(pids))])
    for pid, slot in enumerate(world.slots):
        slot.effects.processes = {"c": SimpleNamespace(pid=pid, mark=0)}
    world.sizes = {0: 300 * MIB, 1: 500 * MIB}
    memory(group, limit=1000 * MIB, current=960 * MIB, inactive=20 * MIB)
    await world.shortage.look()
    assert ended(world) == [], "the kernel drops 20 MiB of files before it kills"
    memory(group, limit=1000 * MIB, current=960 * MIB)
    await world.shortage.look()
    assert ended(world) == [("two", "memory of the service", 960 * MIB)]
    world.sizes = {0: 900 * MIB, 1: 50 * MIB}
    await world.shortage.look()
    assert ended(world) == []
    world.slots[1].experiment_run_id = None
    await world.shortage.look()
    assert [uid for uid, *_ in ended(world)] == ["one"]


async def test_a_service_without_a_limit_ends_nothing_for_memory(world, group):
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text(f"{1 << 50}\n")
    await world.shortage.look()
    assert ended(world) == []

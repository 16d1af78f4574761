"""Runs that wait for a slot: in order, bounded; a reserved place is not given to another run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.daemon.dispatcher import take
from governor.daemon.run_queue import RunQueue
from governor.errors import TryAgain
from governor.journal.journal import Journal
from governor.runs.assignment import Waiting

SPEC = {"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f"}]}]}


def waits(uid, **more):
    return Waiting(uid=uid, **more)


def test_a_promised_place_is_taken_until_its_run_is_in_or_was_not_recorded():
    queue = RunQueue(limit=2)
    with queue.place():
        with queue.place(), pytest.raises(TryAgain, match="2 runs are queued already"), queue.place():
            pass
        with pytest.raises(OSError, match="full"), queue.place():
            raise OSError("the disk is full")
        queue.append(waits("a"))
    with queue.place():
        queue.append(waits("b"))
    with pytest.raises(TryAgain), queue.place():
        pass
    queue.remove("a")
    with queue.place():
        assert queue.uids() == ["b"]


def test_first_come_first_served_and_what_could_not_begin_is_first_again():
    queue = RunQueue(limit=1)
    for uid in ("a", "b", "c"):  # recovery queues what it finds, however many
        queue.append(waits(uid))
    queue.append(waits("a"))
    assert (queue.uids(), queue.position("c")) == (["a", "b", "c"], 2)
    first = queue.remove(queue.first().uid)
    assert (first.uid, queue.first().uid) == ("a", "b")
    queue.put_back(first)
    assert queue.uids() == ["a", "b", "c"]


def test_a_paused_run_keeps_its_place_and_others_pass_it():
    queue = RunQueue(limit=3)
    for uid in ("a", "b", "c"):
        queue.append(waits(uid))
    queue.pause("a", "a guest")
    assert (queue.first().uid, queue.position("b"), queue.position("c")) == ("b", 0, 1)
    assert (queue.find("a").pause, queue.find("b").pause, queue.find("x")) == ("a guest", None, None)
    assert (len(queue), queue.uids()) == (3, ["a", "b", "c"])
    queue.pause("b", "")
    queue.pause("c", "")
    assert queue.first() is None
    queue.pause("a", None)
    assert (queue.first(), queue.position("c")) == (waits("a"), 1)
    assert queue.remove("b").pause == ""
    queue.append(waits("d", pause="as it was recorded"))
    queue.append(waits("e"))
    assert queue.position("e") == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "put_back", "first", "remove"]), st.sampled_from("abcdefgh"))
    )
)
def test_a_position_is_the_number_of_those_before_it(story):
    queue, waiting = RunQueue(limit=1), []
    for step, uid in story:
        if step == "append":
            queue.append(waits(uid))
            waiting += [uid] if uid not in waiting else []
        elif step == "put_back":
            queue.put_back(waits(uid))
            waiting = [uid, *(other for other in waiting if other != uid)]
        else:
            wanted = waiting[0] if step == "first" and waiting else uid
            gone = queue.remove(wanted)
            assert (gone.uid if gone else None) == (wanted if wanted in waiting else None)
            waiting = [other for other in waiting if other != wanted]
        assert (queue.first().uid if queue.first() else None) == next(iter(waiting), None)
        assert queue.uids() == waiting
        assert queue.uids(3) == waiting[:3]
        assert [queue.position(each) for each in waiting] == list(range(len(waiting)))
        for lane in queue._lanes.values():
            assert len(lane._gaps) <= len(lane.runs), "it remembers no run that is gone from the front"


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "governor.db")
    for uid in "abc":
        spec = SPEC if uid != "a" else {**SPEC, "nams": 1}
        await opened.write(
            lambda tx, uid=uid, spec=spec: tx.submit(uid=uid, key=None, name="r", spec=spec, folder="/f")
        )
    yield opened
    await opened.close()


async def test_the_run_file_is_read_when_the_run_is_taken_and_one_that_cannot_be_read_is_damaged(journal):
    queue, damaged = RunQueue(limit=9), {}
    for uid in ("a", "gone", "b"):
        queue.append(waits(uid, first_phase=0, worked=7.0))
    taken = await take(queue, journal, damaged=damaged)
    assert (taken.uid, taken.run.name, taken.folder, taken.worked) == ("b", "r", "/f", 7.0)
    assert damaged.keys() == {"a", "gone"}
    assert damaged["a"].startswith("its run file is of another version: nams: unknown key")
    assert await take(queue, journal, damaged=damaged) is None


async def test_a_run_that_is_aborted_while_its_run_file_is_read_is_not_taken(journal, monkeypatch):
    queue, read = RunQueue(limit=9), journal.read

    async def aborted(question):
        found = await read(question)
        queue.remove("b")
        return found

    for uid in "bc":
        queue.append(waits(uid))
    monkeypatch.setattr(journal, "read", aborted)
    assert (await take(queue, journal, damaged={})).uid == "c"

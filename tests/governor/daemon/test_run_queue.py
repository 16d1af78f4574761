"""Runs that wait for a slot: in order, bounded; a reserved place is not given to another run."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.daemon.run_queue import RunQueue
from governor.errors import TryAgain
from governor.run_file.load import parse
from governor.runs.assignment import Assignment

RUN = parse({"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:f"}]}]})


def assignment(uid):
    return Assignment(uid=uid, run=RUN, folder="/")


def test_a_promised_place_is_taken_until_its_run_is_in_or_was_not_recorded():
    queue = RunQueue(limit=2)
    with queue.place():
        with queue.place(), pytest.raises(TryAgain, match="2 runs are queued already"), queue.place():
            pass
        with pytest.raises(OSError, match="full"), queue.place():
            raise OSError("the disk is full")
        queue.append(assignment("a"))
    with queue.place():
        queue.append(assignment("b"))
    with pytest.raises(TryAgain), queue.place():
        pass
    queue.remove("a")
    with queue.place():
        assert queue.uids() == ["b"]


def test_first_come_first_served_and_what_could_not_begin_is_first_again():
    queue = RunQueue(limit=1)
    for uid in ("a", "b", "c"):  # recovery queues what it finds, however many
        queue.append(assignment(uid))
    queue.append(assignment("a"))
    assert (queue.uids(), queue.position("c")) == (["a", "b", "c"], 2)
    first = queue.pop()
    queue.put_back(first)
    assert first.uid == "a"
    assert queue.uids() == ["a", "b", "c"]


@given(
    st.lists(st.tuples(st.sampled_from(["append", "put_back", "pop", "remove"]), st.sampled_from("abcdefgh")))
)
def test_a_position_is_the_number_of_those_before_it(story):
    queue, waiting = RunQueue(limit=1), []
    for step, uid in story:
        if step == "append":
            queue.append(assignment(uid))
            waiting += [uid] if uid not in waiting else []
        elif step == "put_back":
            queue.put_back(assignment(uid))
            waiting = [uid, *(other for other in waiting if other != uid)]
        else:
            gone = queue.pop() if step == "pop" else queue.remove(uid)
            expected = waiting[0] if step == "pop" and waiting else uid
            assert (gone.uid if gone else None) == (expected if expected in waiting else None)
            with suppress(ValueError):
                waiting.remove(expected)
        assert queue.uids() == waiting
        assert queue.uids(3) == waiting[:3]
        assert [queue.position(each) for each in waiting] == list(range(len(waiting)))
        assert len(queue._gaps) <= 8, "it remembers no run that is gone from the front"

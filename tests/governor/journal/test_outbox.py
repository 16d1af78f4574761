"""The outbox: a delivery comes with its event or not at all, and goes when it is delivered."""

from __future__ import annotations

import pytest

from governor.journal.journal import Journal
from governor.journal.outbox import hook_of
from tests.support.run_results import run_result

TELL = {"command": ["tell"], "url": None, "timeout": 30.0, "retries": 8}
SPEC = {"name": "r", "phases": [], "hooks": {"on_end": TELL, "on_stall": None}, "labels": {"team": "rl"}}


@pytest.fixture
async def journal(tmp_path):
    opened = Journal(tmp_path / "governor.db")
    await opened.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=SPEC, folder="/f"))
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("kind", "data", "hook"),
    [
        ("run.ended", {}, "on_end"),
        ("run.stalled", {}, "on_stall"),
        ("limit.exceeded", {}, "on_limit"),
        ("deadline.passed", {"name": "wall_clock"}, "on_limit"),
        ("deadline.passed", {"name": "start"}, None),
        ("conductor.exited", {"expected": False}, "on_restart"),
        ("conductor.exited", {"expected": True}, None),
        ("run.interrupted", {}, None),
        ("episode.ended", {}, None),
    ],
)
def test_the_hook_of_an_event(kind, data, hook):
    assert hook_of(kind, data) == hook


async def test_an_event_brings_a_delivery_for_the_run_and_one_for_everybody(journal):
    journal.hooks = {"on_end": {**TELL, "command": ["all"]}, "on_stall": TELL}
    await journal.write(lambda tx: tx.event("r1", "run.stalled", {"since": 3.0}))
    await journal.write(
        lambda tx: (tx.outcome(run_result("r1")), tx.event("r1", "run.ended", {"outcome": "finished"}))
    )
    assert journal.due.is_set()
    found = journal.due_deliveries(9)
    assert [(each.document["key"], each.hook["command"]) for each in found] == [
        ("r1-2-daemon", ["tell"]),
        ("r1-3-run", ["tell"]),
        ("r1-3-daemon", ["all"]),
    ]
    told = found[1].document
    assert (told["hook"], told["outcome"], told["labels"]) == ("on_end", "finished", {"team": "rl"})
    assert found[0].document["data"] == {"since": 3.0}
    assert [each.position for each in journal.due_deliveries(1, besides=[found[0].position])] == [
        found[1].position
    ]


async def test_what_is_rolled_back_tells_nothing(journal):
    def change(tx):
        tx.event("r1", "run.ended", {})
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await journal.write(change)
    assert journal.due_deliveries(9) == []


async def test_a_delivered_one_is_gone_and_one_that_was_given_up_stays_with_its_error(journal):
    await journal.write(lambda tx: tx.event("r1", "run.ended", {}))
    [first] = journal.due_deliveries(9)
    assert journal.undelivered("r1") == []
    await journal.write(lambda tx: tx.not_delivered(first.position, error="busy", due_at=1e12))
    [again] = journal.due_deliveries(9)
    assert (again.tries, again.error, again.due_at) == (1, "busy", 1e12)
    assert journal.undelivered("r1") == [again]
    await journal.write(lambda tx: tx.not_delivered(first.position, error="gone", due_at=None))
    assert journal.due_deliveries(9) == []
    assert [(each.error, each.tries, each.due_at) for each in journal.undelivered("r1")] == [
        ("gone", 2, None)
    ]
    await journal.write(lambda tx: tx.delivered(first.position))
    assert journal.undelivered("r1") == []

"""The broker core, where it runs out of time, requests, or room: what expires, what is sent again, what is bounded."""

from __future__ import annotations

import pytest
from broker_stage import Stage

from transport import frames as mdp
from transport.broker_core import Side
from transport.envelope import Status

# -- time ---------------------------------------------------------------------------------------------------


def test_a_service_that_never_comes_is_said_to_be_missing():
    stage = Stage(service_wait=5.0)
    stage.ask(b"c", 1, seconds=60)
    stage.pass_time(4.9)
    assert stage.answers(b"c") == []
    stage.pass_time(0.2)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, Status.SERVICE_NOT_FOUND)]
    assert stage.core.gauges["services"] == 0


def test_the_wait_for_a_service_begins_when_its_last_worker_is_lost():
    stage = Stage(service_wait=5.0, heartbeat=100.0)
    stage.ready(b"w")
    stage.ask(b"c", 1, seconds=60)
    stage.ask(b"c", 2, seconds=60)
    stage.pass_time(20)
    stage.worker(b"w", mdp.Disconnect())
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, Status.WORKER_LOST)]
    stage.pass_time(4.9)
    assert stage.answers(b"c") == []
    stage.pass_time(6)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(2, Status.SERVICE_NOT_FOUND)]


def test_a_queued_request_expires_at_its_deadline_one_at_work_does_not():
    stage = Stage(heartbeat=100.0)
    stage.ready(b"w")
    stage.ask(b"c", 1, seconds=1)
    stage.ask(b"c", 2, seconds=1)
    stage.pass_time(1.01)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(2, Status.EXPIRED)]
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1)
    assert [n for n, _, _ in stage.answers(b"c")] == [1]


def test_a_plain_request_expires_too_but_cannot_be_told():
    stage = Stage(plain_wait=3.0, service_wait=10.0)
    stage.client(b"c", mdp.ClientRequest(b"echo", [b"plain"]))
    stage.pass_time(3.1)
    assert (stage.sent, stage.core.counters.dropped_plain, stage.core.gauges["queued"]) == ({}, 1, 0)


# -- dedupe and cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", [True, False])
def test_the_same_request_again_is_not_started_twice_and_answers_where_it_was_asked_last(queued):
    stage = Stage()
    if not queued:
        stage.ready(b"w", credit=2)
    stage.ask(b"old", 1, idempotent=True)
    stage.ask(b"new", 1, idempotent=True)
    stage.ask(b"new", 1, idempotent=True, session=b"t" * 16)  # another session's request 1 is another request
    if queued:
        stage.worker(b"w", mdp.Ready(b"echo", 2, extended=True))
    first, other = stage.take(b"w")
    stage.answer(b"w", first.address, 1)
    assert stage.answers(b"old") == []
    assert len(stage.answers(b"new")) == 1
    assert other.body[0] != first.body[0]


def test_a_cancelled_request_in_the_queue_is_gone_one_at_work_is_told_to_its_worker():
    stage = Stage()
    stage.ready(b"w")
    for number in (1, 2, 3):
        stage.ask(b"c", number)
    address, _, _ = stage.request_at(b"w")
    stage.ask(b"c", 2, cancel=True)
    stage.ask(b"c", 1, cancel=True)
    assert stage.take(b"w") == [mdp.Cancel(address)]
    stage.answer(b"w", address, 1)
    assert stage.request_at(b"w")[1] == 3, "the credit is free only when the FINAL is there"
    assert stage.answers(b"c") == []
    assert stage.core.counters.late_replies == 1


def test_a_stream_whose_reader_has_gone_is_cancelled():
    stage = Stage()
    stage.ready(b"w")
    stage.ask(b"c", 1, stream=True)
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1, kind=mdp.WorkerPartial)
    (part,) = stage.take(b"c")
    stage.undelivered(Side.CLIENTS, b"c", *part.frames())
    assert stage.take(b"w") == [mdp.Cancel(address)]


# -- MMI ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "asked", "code"),
    [
        (b"mmi.service", b"echo", b"200"),
        (b"mmi.service", b"waited-for", b"404"),
        (b"mmi.service", b"unknown", b"404"),
        (b"mmi.workers", b"echo", b"501"),
        (b"mmi.", b"", b"501"),
    ],
)
def test_mmi_is_answered_by_the_broker(service, asked, code):
    stage = Stage()
    stage.ready(b"w")
    stage.ask(b"c", 1, service=b"waited-for")
    stage.client(b"c", mdp.ClientRequest(service, [asked]))
    assert stage.take(b"c") == [mdp.ClientFinal(service, [code])]
    stage.ask(b"c", 2, service=service, body=asked)
    assert stage.answers(b"c") == [(2, Status.OK, [code])]


# -- bounds -------------------------------------------------------------------------------------------------


def statuses(stage, who):
    return [status for _, status, _ in stage.answers(who)]


def test_queues_are_bounded_one_by_one_and_in_all():
    stage = Stage(queue=2, queue_total=3, services=10)
    for number in range(3):
        stage.ask(b"a", number, service=b"one")
    for number in range(3, 6):
        stage.ask(b"b", number, service=b"two")
    assert statuses(stage, b"a") == [Status.QUEUE_FULL]
    assert statuses(stage, b"b") == [Status.QUEUE_FULL] * 2


def test_services_workers_and_credit_are_bounded():
    stage = Stage(services=1, workers=2, credit_total=10)
    stage.ready(b"w1", credit=8)
    stage.worker(b"w2", mdp.Ready(b"echo", 8, extended=True))
    stage.worker(b"w3", mdp.Ready(b"other"))
    stage.worker(b"w4", mdp.Ready(b"echo"))
    stage.worker(b"w5", mdp.Ready(b"echo"))
    refused = [who for who in (b"w2", b"w3", b"w4", b"w5") if stage.take(who) == [mdp.Disconnect()]]
    assert refused == [b"w2", b"w3", b"w5"]
    stage.ask(b"c", 1, service=b"another")
    assert statuses(stage, b"c") == [Status.QUEUE_FULL]


def test_bodies_are_bounded_one_by_one_and_in_all():
    stage = Stage(body_bytes=1000, held_bytes=1500)
    stage.ask(b"a", 1, body=b"x" * 1001)
    assert statuses(stage, b"a") == [Status.TOO_LARGE]
    stage.ask(b"b", 2, body=b"x" * 900)
    stage.ask(b"b", 3, body=b"x" * 900)
    assert statuses(stage, b"b") == [Status.QUEUE_FULL]
    stage.ready(b"w")
    stage.ask(b"b", 4, body=b"x" * 900)
    assert statuses(stage, b"b") == [], "a request in flight that may not be repeated is not held"


def test_the_expiry_list_does_not_outgrow_the_queue():
    stage = Stage(heartbeat=1e6)
    stage.ready(b"w")
    stage.ask(b"c", 0, seconds=1000)
    address, number, _ = stage.request_at(b"w")
    for following in range(1, 2000):
        stage.ask(b"c", following, seconds=1000)
        stage.answer(b"w", address, number)
        address, number, _ = stage.request_at(b"w")
    assert len(stage.core._dispatcher._expiries) < 100

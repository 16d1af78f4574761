"""The broker core, where it runs out of time, requests, or room: what expires, what is sent again, what is bounded."""

from __future__ import annotations

import pytest

from tests.support.broker_stage import Stage
from transport import frames as mdp
from transport.broker_core import Side
from transport.envelope import ReplyStatus

# -- time ---------------------------------------------------------------------------------------------------


def test_a_service_that_never_comes_is_reported_missing():
    stage = Stage(service_wait=5.0)
    stage.ask(b"c", 1, seconds=60)
    stage.pass_time(4.9)
    assert stage.answers(b"c") == []
    stage.pass_time(0.2)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, ReplyStatus.SERVICE_NOT_FOUND)]
    assert stage.core.gauges["services"] == 0


def test_the_wait_for_a_service_begins_when_its_last_worker_is_lost():
    stage = Stage(service_wait=5.0, heartbeat=100.0)
    stage.ready(b"w")
    stage.ask(b"c", 1, seconds=60)
    stage.ask(b"c", 2, seconds=60)
    stage.pass_time(20)
    stage.worker(b"w", mdp.Disconnect())
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, ReplyStatus.WORKER_LOST)]
    stage.pass_time(4.9)
    assert stage.answers(b"c") == []
    stage.pass_time(6)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(2, ReplyStatus.SERVICE_NOT_FOUND)]


def test_a_request_that_had_begun_is_never_told_that_nothing_was_done():
    for seconds in (3, 60):  # its deadline comes first, or the end of the wait for a service
        stage = Stage(service_wait=5.0, heartbeat=100.0)
        stage.ready(b"w")
        stage.ask(b"c", 1, seconds=seconds, idempotent=True)
        stage.worker(b"w", mdp.Disconnect())
        stage.pass_time(6)
        assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(1, ReplyStatus.WORKER_LOST)]


def test_a_queued_request_expires_at_its_deadline_one_at_work_does_not():
    stage = Stage(heartbeat=100.0)
    stage.ready(b"w")
    stage.ask(b"c", 1, seconds=1)
    stage.ask(b"c", 2, seconds=1)
    stage.pass_time(1.01)
    assert [(n, s) for n, s, _ in stage.answers(b"c")] == [(2, ReplyStatus.EXPIRED)]
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1)
    assert [n for n, _, _ in stage.answers(b"c")] == [1]


def test_a_plain_request_expires_too_without_a_reply():
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


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_request_that_comes_again_after_its_final_gets_that_and_is_not_started_again(idempotent):
    stage = Stage()
    stage.ready(b"w", credit=2)
    stage.ask(b"old", 1, idempotent=idempotent)
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1)
    [first] = stage.answers(b"old")
    for again in (b"new", b"newer"):
        stage.ask(again, 1, idempotent=idempotent)
        assert stage.answers(again) == [first]
    assert stage.take(b"w") == []
    assert stage.core.counters.replayed == 2
    stage.ask(b"new", 1, cancel=True)
    assert stage.take(b"w") == []
    stage.ask(b"new", 1, session=b"t" * 16)
    assert stage.request_at(b"w")[1] == 1, "another session's request 1 is another request"


def test_kept_finals_are_bounded_and_the_newest_are_there():
    stage = Stage(finals=20, finals_bytes=10_000)
    stage.ready(b"w")
    for number in range(1, 101):
        stage.ask(b"c", number)
        address, _, _ = stage.request_at(b"w")
        stage.answer(b"w", address, number)
    assert 10 <= stage.core.gauges["kept_finals"] <= 20
    stage.take(b"c")
    for number in (100, 91, 90):  # at least half of them are there, whenever one looks
        stage.ask(b"c", number)
    assert len(stage.answers(b"c")) == 3
    assert stage.core.counters.replayed == 3
    stage.ask(b"c", 1)
    assert stage.request_at(b"w")[1] == 1, "its answer is kept no more: it is started again"


def test_an_answer_without_room_is_not_kept_and_takes_none_of_others():
    stage = Stage(finals_bytes=2_000)
    stage.ready(b"w")
    for number, size in ((1, 1), (2, 1_200)):
        stage.ask(b"c", number)
        address, _, _ = stage.request_at(b"w")
        stage.answer(b"w", address, number, body=b"x" * size)
    assert stage.core.gauges["kept_finals"] == 1
    stage.ask(b"c", 1)
    assert stage.core.counters.replayed == 1


def test_a_stream_that_comes_again_after_its_end_is_started_again():
    """Its parts are not kept."""
    stage = Stage()
    stage.ready(b"w")
    for _ in range(2):
        stage.ask(b"c", 1, stream=True)
        address, _, _ = stage.request_at(b"w")
        stage.answer(b"w", address, 1)
    assert (stage.core.counters.replayed, stage.core.gauges["kept_finals"]) == (0, 0)


def test_an_error_of_the_broker_is_not_kept():
    stage = Stage(service_wait=10.0)
    stage.ask(b"c", 1)
    stage.pass_time(11)
    assert len(stage.answers(b"c")) == 1
    stage.ready(b"w")
    stage.ask(b"c", 1)
    assert stage.request_at(b"w")[1] == 1


def test_a_cancelled_request_is_removed_from_the_queue_or_sent_to_its_worker():
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


def test_the_streams_of_a_client_that_has_gone_are_cancelled_all_at_once():
    stage = Stage()
    stage.ready(b"w", credit=4)
    for number in (1, 2):
        stage.ask(b"c", number, stream=True)
    stage.ask(b"c", 3)
    stage.ask(b"d", 4, stream=True)
    addresses = [command.address for command in stage.take(b"w")]
    stage.undelivered(Side.CLIENTS, b"c", *mdp.ClientFinal(b"echo", [b"x"]).frames())
    assert stage.take(b"w") == [mdp.Cancel(address) for address in addresses[:2]]
    stage.undelivered(Side.CLIENTS, b"c", *mdp.ClientFinal(b"echo", [b"x"]).frames())
    assert stage.take(b"w") == []


def test_a_stream_that_is_reattached_outlives_its_first_connection():
    stage = Stage()
    stage.ready(b"w")
    stage.ask(b"old", 1, stream=True, idempotent=True)
    address, _, _ = stage.request_at(b"w")
    stage.ask(b"new", 1, stream=True, idempotent=True)
    stage.undelivered(Side.CLIENTS, b"old", *mdp.ClientFinal(b"echo", [b"x"]).frames())
    assert stage.take(b"w") == []
    stage.undelivered(Side.CLIENTS, b"new", *mdp.ClientFinal(b"echo", [b"x"]).frames())
    assert stage.take(b"w") == [mdp.Cancel(address)]


# -- requests that kill ---------------------------------------------------------------------------------------


def test_a_request_that_has_lost_two_workers_is_not_started_again():
    stage = Stage()
    for who in (b"w1", b"w2", b"w3"):
        stage.ready(who)
    stage.ask(b"c", 1, idempotent=True)
    stage.worker(b"w1", mdp.Disconnect())
    assert stage.answers(b"c") == []
    stage.worker(b"w2", mdp.Disconnect())
    ((number, status, body),) = stage.answers(b"c")
    assert (number, status) == (1, ReplyStatus.WORKER_LOST)
    assert body[0].startswith(b"2 workers were lost while they had this request")
    assert stage.take(b"w3") == []
    assert stage.core.counters.given_up == 1
    assert stage.core.gauges["held_bytes"] == 0


def test_a_plain_request_that_has_lost_two_workers_is_dropped():
    stage = Stage()
    for who in (b"w1", b"w2", b"w3"):
        stage.ready(who)
    stage.client(b"c", mdp.ClientRequest(b"echo", [b"plain"]))
    stage.worker(b"w1", mdp.Disconnect())
    stage.worker(b"w2", mdp.Disconnect())
    assert stage.take(b"w3") == []
    assert stage.core.counters.dropped_plain == 1


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
    assert stage.answers(b"c") == [(2, ReplyStatus.OK, [code])]


# -- bounds -------------------------------------------------------------------------------------------------


def statuses(stage, who):
    return [status for _, status, _ in stage.answers(who)]


def test_queues_are_bounded_one_by_one_and_in_all():
    stage = Stage(queue=2, queue_total=3, services=10)
    for number in range(3):
        stage.ask(b"a", number, service=b"one")
    for number in range(3, 6):
        stage.ask(b"b", number, service=b"two")
    assert statuses(stage, b"a") == [ReplyStatus.QUEUE_FULL]
    assert statuses(stage, b"b") == [ReplyStatus.QUEUE_FULL] * 2


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
    assert statuses(stage, b"c") == [ReplyStatus.QUEUE_FULL]


def test_one_client_leaves_room_in_the_queues_for_others():
    stage = Stage(queue=10, queue_total=20)
    for number in range(100):
        stage.ask(b"greedy", number, service=b"one")
        stage.ask(b"greedy", 100 + number, service=b"two")
    assert len(statuses(stage, b"greedy")) == 200 - 11
    stage.ask(b"other", 1, service=b"one")
    stage.ask(b"other", 2, service=b"two")
    assert statuses(stage, b"other") == []


def test_made_up_names_keep_out_neither_workers_nor_other_clients():
    stage = Stage(services=10)
    for number in range(100):
        stage.ask(b"greedy", number, service=b"made-up-%d" % number)
    assert len(statuses(stage, b"greedy")) == 100 - 6
    stage.ask(b"other", 1, service=b"wanted")
    assert statuses(stage, b"other") == []
    for number in range(10):
        stage.worker(b"w%d" % number, mdp.Ready(b"service-%d" % number))
        assert stage.take(b"w%d" % number) == []
    stage.worker(b"late", mdp.Ready(b"one more"))
    stage.worker(b"later", mdp.Ready(b"wanted"))
    assert [stage.take(who) for who in (b"late", b"later")] == [[mdp.Disconnect()]] * 2
    stage.pass_time(11)
    assert stage.core.gauges["services"] == 0, "nobody waits any more, and the silent workers are lost"


def test_one_client_leaves_bytes_for_others():
    stage = Stage(held_bytes=10_000)
    for number in range(20):
        stage.ask(b"greedy", number, body=b"x" * 1000)
    assert len(statuses(stage, b"greedy")) == 20 - 5
    stage.ask(b"other", 1, body=b"x" * 1000)
    assert statuses(stage, b"other") == []


def test_bodies_are_bounded_one_by_one_and_in_all():
    stage = Stage(body_bytes=1000, held_bytes=1500)
    stage.ask(b"a", 1, body=b"x" * 1001)
    assert statuses(stage, b"a") == [ReplyStatus.TOO_LARGE]
    stage.ask(b"b", 2, body=b"x" * 900)
    stage.ask(b"b", 3, body=b"x" * 900)
    assert statuses(stage, b"b") == [ReplyStatus.QUEUE_FULL]
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

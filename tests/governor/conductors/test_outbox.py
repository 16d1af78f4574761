"""A conductor keeps its events, in order, until they are acknowledged."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from governor.conductors import outbox
from governor.conductors.outbox import Outbox
from governor.errors import ConductorError
from governor.messages import (
    Acknowledged,
    Log,
    Refused,
    decode_report,
    encode,
    run_service,
)
from tests.support.conductor_specs import conductor_spec
from transport import frames
from transport.broker import Broker, BrokerSettings
from transport.client import Client
from transport.worker import Worker


@pytest.fixture
async def post():
    """An outbox, and `serve(handler)` for the governor's side of it."""
    with tempfile.TemporaryDirectory(prefix="ob-", dir="/tmp") as name:
        client_end, worker_end = f"ipc://{name}/c", f"ipc://{name}/w"
        spec = conductor_spec(
            name,
            uid="r1",
            name="simulation",
            kind="simulation",
            client_endpoint=client_end,
            worker_endpoint=worker_end,
        )
        async with (
            Broker(BrokerSettings(client_endpoint=client_end, worker_endpoint=worker_end)),
            Client(client_end) as client,
            Outbox(spec=spec, client=client) as box,
        ):
            box.serve = lambda handler: Worker(worker_end, run_service("r1"), handler)
            box.folder = Path(name)
            yield box


def lines(count):
    return [Log(level="info", event=f"e{number}") for number in range(count)]


async def test_events_arrive_in_order_with_their_numbers_and_share_their_way(post):
    reports = []

    async def take(request):
        reports.append(decode_report(request.body[0]))
        return [encode(Acknowledged())]

    async with post.serve(take):
        await asyncio.gather(*(post.report(line) for line in lines(600)))
    told = [event.event for report in reports for event in report.events]
    assert told == [f"e{number}" for number in range(600)]
    assert [report.seq for report in reports] == [
        1 + sum(len(r.events) for r in reports[:n]) for n in range(len(reports))
    ]
    assert len(reports) < 20


async def test_what_was_not_acknowledged_is_sent_again_as_it_was(post, monkeypatch):
    monkeypatch.setattr(outbox, "BACK_OFF_SECONDS", 0.01)
    seen = []

    async def full_disk_twice(request):
        seen.append(request.body[0])
        if len(seen) < 3:
            raise OSError("no space left on device")
        return [encode(Acknowledged(flow="STOP_PHASE"))]

    async with post.serve(full_disk_twice):
        answer = await asyncio.wait_for(post.report(lines(1)[0]), 10)
    assert answer.flow == "STOP_PHASE"
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_an_event_that_the_governor_refuses_is_an_error_of_its_own(post):
    async def refuse(_request):
        return [encode(Refused(code="bad_request", message="not like this", exit_code=2))]

    async with post.serve(refuse):
        with pytest.raises(ConductorError, match="not like this"):
            await asyncio.wait_for(post.report(lines(1)[0]), 10)


async def test_a_batch_that_is_too_large_for_the_broker_goes_in_parts_and_in_order(post, monkeypatch):
    monkeypatch.setattr(frames, "BODY_LIMIT", 20_000)
    reports = []

    async def take(request):
        reports.append(decode_report(request.body[0]))
        return [encode(Acknowledged())]

    large = [Log(level="info", event=f"e{number}", data={"text": "x" * 7_000}) for number in range(9)]
    async with post.serve(take), asyncio.timeout(10):
        await asyncio.gather(*(post.report(line) for line in large))
    assert [event.event for report in reports for event in report.events] == [f"e{n}" for n in range(9)]
    assert [report.seq for report in reports] == [
        1 + sum(len(r.events) for r in reports[:n]) for n in range(len(reports))
    ]


def nested():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "unspeakable", [nested, object, lambda: "\udc80", lambda: 2**70, lambda: "x" * 30_000]
)
async def test_an_event_that_cannot_travel_is_its_reporters_error_and_the_others_arrive(
    post, monkeypatch, unspeakable
):
    monkeypatch.setattr(frames, "BODY_LIMIT", 20_000)
    told = []

    async def take(request):
        told.extend(decode_report(request.body[0]).events)
        return [encode(Acknowledged())]

    events = lines(5)
    events[2] = Log(level="info", event="bad", data={"value": unspeakable()})
    async with post.serve(take), asyncio.timeout(10):
        answers = await asyncio.gather(*(post.report(event) for event in events), return_exceptions=True)
        await post.report(Log(level="info", event="later"))
    assert [type(answer) for answer in answers] == [Acknowledged] * 2 + [ConductorError] + [Acknowledged] * 2
    assert [event.event for event in told] == ["e0", "e1", "e3", "e4", "later"]


async def test_a_fault_of_the_transport_is_told_as_it_is_and_the_next_event_arrives(post, monkeypatch):
    async def broken(*_arguments, **_options):
        raise TypeError("a body is a sequence of bytes")

    async def take(_request):
        return [encode(Acknowledged())]

    async with post.serve(take), asyncio.timeout(10):
        with monkeypatch.context() as patch:
            patch.setattr(post.client, "request", broken)
            answers = await asyncio.gather(*map(post.report, lines(2)), return_exceptions=True)
        assert [repr(answer) for answer in answers] == ["TypeError('a body is a sequence of bytes')"] * 2
        assert await post.report(lines(1)[0]) == Acknowledged()


async def test_an_answer_that_says_nothing_is_no_acknowledgement(post, monkeypatch):
    monkeypatch.setattr(outbox, "BACK_OFF_SECONDS", 0.01)
    answers = [[], [b"\xff"], [encode(Acknowledged())]]

    async def mumble(_request):
        return answers.pop(0)

    async with post.serve(mumble), asyncio.timeout(10):
        assert await post.report(lines(1)[0]) == Acknowledged()
    assert answers == []

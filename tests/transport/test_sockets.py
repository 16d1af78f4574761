"""Sockets are drained in bursts; what a message leads to may end the socket in the middle of one."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import zmq

from transport.sockets import SocketLoop


@pytest.mark.parametrize("flooded_first", [True, False])
async def test_a_socket_that_is_never_empty_delays_another_by_a_few_budgets(flooded_first):
    context = zmq.Context()
    ends = [context.socket(zmq.PAIR) for _ in range(4)]
    for name, sender, receiver in (("flood", *ends[:2]), ("quiet", *ends[2:])):
        sender.bind(f"inproc://{name}")
        receiver.connect(f"inproc://{name}")
    flood, flooded, quiet, receiver = ends
    sockets, taken, after, done = SocketLoop(), [], [], asyncio.Event()

    def more(_frames):
        taken.append(1)
        if len(taken) % 100 == 0:
            quiet.send(b"now and then")
        if len(taken) < 20_000:
            flood.send(b"again")
        else:
            done.set()

    def note(_frames):
        after.append(len(taken))

    for _ in range(500):
        flood.send(b"first")
    order = [(flooded, more), (receiver, note)][:: 1 if flooded_first else -1]
    drained = [sockets.add(socket, on_message=on_message) for socket, on_message in order]
    async with asyncio.timeout(20):
        await done.wait()
    for each in drained:
        sockets.remove(each)
    for end in ends:
        end.close(linger=0)
    context.term()
    assert after, "nothing was received"
    assert max(later - earlier for earlier, later in pairwise([0, *after])) <= 4 * 128


async def test_a_socket_that_is_closed_over_a_message_is_drained_no_more():
    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sender.bind("inproc://sender")
    receiver.connect("inproc://sender")
    for number in range(5):
        sender.send(bytes([number]))
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
    sockets, seen, closed = SocketLoop(), [], asyncio.Event()

    def take(frames):
        seen.append(frames)
        if len(seen) == 3:
            sockets.remove(drained)
            receiver.close(linger=0)
            closed.set()

    drained = sockets.add(receiver, on_message=take)
    await asyncio.wait_for(closed.wait(), 5)
    await asyncio.sleep(0)
    sender.close(linger=0)
    context.term()
    assert seen == [[b"\0"], [b"\1"], [b"\2"]]
    assert failures == []


async def test_a_batch_ends_after_a_few_messages_and_with_the_last_one():
    context = zmq.Context()
    sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    sender.bind("inproc://sender")
    receiver.connect("inproc://sender")
    for _ in range(22):
        sender.send(b"")
    seen, done = [], asyncio.Event()

    def note(what):
        seen.append(what)
        if seen.count("message") == 22 and what == "batch":
            done.set()

    sockets = SocketLoop()
    drained = sockets.add(receiver, on_message=lambda _: note("message"), on_batch=lambda: note("batch"))
    await asyncio.wait_for(done.wait(), 5)
    sockets.remove(drained)
    for end in (sender, receiver):
        end.close(linger=0)
    context.term()
    sizes = [len(batch.split()) for batch in " ".join(seen).split("batch")[:-1]]
    assert sum(sizes) == 22
    assert max(sizes) == 4

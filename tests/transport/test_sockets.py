"""Sockets are drained in bursts; what a message leads to may end the socket in the middle of one."""

from __future__ import annotations

import asyncio

import zmq

from transport.sockets import SocketLoop


async def test_a_socket_that_is_closed_over_a_message_is_drained_no_more():
    context = zmq.Context()
    told, heard = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    told.bind("inproc://told")
    heard.connect("inproc://told")
    for number in range(5):
        told.send(bytes([number]))
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
    sockets, seen, closed = SocketLoop(), [], asyncio.Event()

    def take(frames):
        seen.append(frames)
        if len(seen) == 3:
            sockets.remove(drained)
            heard.close(linger=0)
            closed.set()

    drained = sockets.add(heard, on_message=take)
    await asyncio.wait_for(closed.wait(), 5)
    await asyncio.sleep(0)
    told.close(linger=0)
    context.term()
    assert seen == [[b"\0"], [b"\1"], [b"\2"]]
    assert failures == []

"""Who sent a request: told by the kernel to the broker, by the broker to the worker; no client can say it itself."""

from __future__ import annotations

import asyncio
import os
import struct
import sys

import pytest

from tests.support.broker_stage import Stage
from tests.transport.hostile_peers import GREETING
from transport import envelope as envelopes
from transport import frames as mdp
from transport.access import Access, Peer
from transport.broker import Broker, BrokerSettings
from transport.broker_core import Side
from transport.client import Client
from transport.worker import Worker

TOLD = Access(stamped=frozenset({b"governor"}))
ME = Peer(uid=os.getuid(), gid=os.getgid(), pid=os.getpid())


@pytest.mark.parametrize(
    ("address", "local", "peer"),
    [
        ("localhost:1000:100:4711", True, Peer(1000, 100, 4711)),
        ("::1:1000:100:4711", True, Peer(1000, 100, 4711)),
        ("", True, Peer()),
        ("localhost", True, Peer()),
        ("localhost:a:b:c", True, Peer()),
        ("192.0.2.7", False, Peer(address="192.0.2.7")),
        ("localhost:0:0:1", False, Peer(address="localhost:0:0:1")),
        ("x" * 1000, False, Peer(address="x" * 64)),
    ],
)
def test_only_the_address_of_a_local_socket_has_credentials(address, local, peer):
    assert Peer.told(address, local=local) == peer
    assert Peer.read(peer.stamp()) == peer


@pytest.mark.parametrize("stamp", [b"", b"rubbish", b"\xc1", b"\x94\xa1x\xc0\xc0\xa0"])
def test_an_address_of_another_broker_tells_nobody(stamp):
    assert Peer.read(stamp) is None


def test_only_a_service_that_is_told_gets_it_and_nothing_that_the_client_sent_is_part_of_it():
    stage = Stage(access=TOLD)
    forged = Peer(0, 0, 1).stamp()
    for service, worker, stamp in ((b"governor", b"w", Peer(7, 8, 9).stamp()), (b"echo", b"v", b"")):
        stage.ready(worker, service)
        envelope = envelopes.RequestEnvelope(1, b"s" * 16, 10_000).frame()
        frames = [b"client", *mdp.ClientRequest(service, [envelope, forged]).frames()]
        stage._note(stage.core.feed(Side.CLIENTS, frames, stage.now, lambda: Peer(7, 8, 9)))
        address, number, body = stage.request_at(worker)
        assert (address[mdp.NUMBER_BYTES :], body) == (stamp, [forged])
        stage.answer(worker, address, number)
        assert len(stage.answers(b"client")) == 1


def test_a_request_that_another_worker_gets_is_of_the_same_peer():
    stage = Stage(access=TOLD)
    stage.ready(b"w", b"governor")
    envelope = envelopes.RequestEnvelope(1, b"s" * 16, 10_000, idempotent=True).frame()
    frames = [b"client", *mdp.ClientRequest(b"governor", [envelope, b""]).frames()]
    stage._note(stage.core.feed(Side.CLIENTS, frames, stage.now, lambda: ME))
    first = stage.request_at(b"w")[0]
    stage.worker(b"w", mdp.Disconnect())
    stage.worker(b"v", mdp.Ready(b"governor", 1, extended=True))
    second = stage.request_at(b"v")[0]
    assert first != second
    assert Peer.read(second[mdp.NUMBER_BYTES :]) == ME


async def heard(endpoints, send):
    """The peers that a worker is told while `send(client endpoint)` runs."""
    seen: list[Peer | None] = []
    arrived = asyncio.Event()

    async def note(request):
        seen.append(request.peer)
        arrived.set()
        return [b""]

    client, worker = endpoints
    async with (
        Broker(BrokerSettings(client_endpoint=client, worker_endpoint=worker, access=TOLD)) as broker,
        Worker(broker.worker_endpoint, "governor", note) as serving,
        asyncio.timeout(20),
    ):
        await serving.registered()
        close = await send(broker.client_endpoint)
        await arrived.wait()
        if close is not None:
            close()
    return seen


@pytest.fixture
def ipc(tmp_path):
    return f"ipc://{tmp_path}/c.sock", f"ipc://{tmp_path}/w.sock"


async def test_a_worker_is_told_uid_gid_and_pid_of_each_client(ipc):
    program = (
        "import asyncio, sys\nfrom transport.client import Client\n"
        "async def ask():\n    async with Client(sys.argv[1]) as client:\n"
        "        await client.request('governor', b'x', timeout=20)\nasyncio.run(ask())"
    )
    pids = []

    async def send(endpoint):
        async with Client(endpoint) as client:
            await client.request("governor", b"x", timeout=20)
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, endpoint)
            assert await other.wait() == 0
            pids.append(other.pid)
            await client.request("governor", b"x", timeout=20)

    seen = await heard(ipc, send)
    assert seen == [ME, Peer(ME.uid, ME.gid, pids[0]), ME]


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack("!I", len(value)) + value


async def forge(endpoint):
    """A peer whose handshake claims another peer's address, then a request."""
    kind, _, place = endpoint.partition("://")
    if kind == "ipc":
        reader, writer = await asyncio.open_unix_connection(place)
    else:
        reader, writer = await asyncio.open_connection(*place.rsplit(":", 1))
    claims = b"".join(
        _property(name, b"localhost:0:0:1") for name in (b"Peer-Address", b"X-Peer-Address", b"User-Id")
    )
    ready = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", b"") + claims
    writer.write(GREETING)
    await reader.readexactly(64)
    writer.write(b"\x04" + bytes([len(ready)]) + ready)
    frames = mdp.ClientRequest(b"governor", [b"body"]).frames()
    for index, frame in enumerate(frames):
        writer.write(bytes([index < len(frames) - 1, len(frame)]) + frame)
    await writer.drain()
    await reader.readexactly(2)
    return writer.close


async def test_what_a_peer_claims_in_its_handshake_counts_for_nothing(ipc):
    assert await heard(ipc, forge) == [ME]


async def test_a_tcp_peer_has_an_address_and_no_credentials():
    seen = await heard(("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"), forge)
    assert seen == [Peer(address="127.0.0.1")]

"""A socket for clients on other machines: who comes in with which key, and what strangers cost."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress

import msgspec
import pytest
import zmq

from tests.support.broker_stage import Stage
from tests.transport.conftest_peers import FAST, echo, until
from transport import frames as mdp
from transport.access import Access, Peer, Secret
from transport.broker import Broker, BrokerSettings
from transport.broker_core import BrokerLimits, Side
from transport.client import Client
from transport.connection import NO_HANDSHAKE, UNKNOWN_KEY
from transport.envelope import RequestEnvelope
from transport.errors import BadEndpoint, BadKey, BrokerUnreachable, RequestNotPermitted
from transport.network.curve import ClientKeys, KeyPair, Member, NetworkSettings, checked
from transport.network.gatekeeper import LINES, Gatekeeper

SERVER, ALICE, BOB, STRANGER = (KeyPair.new() for _ in range(4))
SECRET = Secret(bytes(range(32)))
ACCESS = Access(public=frozenset({b"who", b"parts"}), secret=SECRET, stamped=frozenset({b"who", b"parts"}))
MEMBERS = (
    Member(name="alice", role="operator", public=ALICE.public),
    Member(name="bob", role="viewer", public=BOB.public),
)


class Network:
    """A broker that listens with keys, and its clients."""

    def __init__(self, world, *, limits=FAST, endpoint="tcp://127.0.0.1:*"):
        self.world = world
        self.events = []
        settings = BrokerSettings(
            client_endpoint=world.client_endpoint,
            worker_endpoint=world.worker_endpoint,
            private_endpoint=f"ipc://{world.folder}/private.sock",
            access=ACCESS,
            limits=limits,
            network=NetworkSettings(endpoint=endpoint, pair=SERVER, members=MEMBERS),
        )
        self.broker = Broker(settings, on_event=lambda name, **data: self.events.append((name, data)))

    async def __aenter__(self):
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(self.broker)
        for service, handler in (("who", self._who), ("parts", self._parts), ("closed", echo)):
            worker = await self._stack.enter_async_context(self.world.worker(service, handler, 16))
            await worker.registered()
        self.private = await self._stack.enter_async_context(self.world.client(self.broker.private_endpoint))
        return self

    async def __aexit__(self, *_):
        await self._stack.aclose()

    @property
    def port(self):
        return int(self.broker.network_endpoint.rpartition(":")[2])

    def client(self, pair=ALICE, server=SERVER.public):
        keys = None if pair is None else ClientKeys(server=server, pair=pair)
        return Client(self.broker.network_endpoint, keys=keys, context=self.world.context)

    async def admit(self, *members, secret=SECRET):
        body = secret.value, msgspec.msgpack.encode(members)
        [code] = await self.private.request("mmi.members", *body, timeout=5)
        return code

    @property
    def refusals(self):
        return [data for name, data in self.events if name == "broker.peer_refused"]

    @staticmethod
    async def _who(request):
        return [msgspec.json.encode(request.peer)]

    @staticmethod
    async def _parts(request):
        await request.partial(b"first")
        await asyncio.Event().wait()


async def who(client, *, timeout=5):  # noqa: ASYNC109  # the client's
    [answer] = await client.request("who", timeout=timeout)
    return msgspec.json.decode(answer, type=Peer)


# -- keys -----------------------------------------------------------------------------------------------------


def test_a_key_is_forty_characters_of_z85():
    assert checked(ALICE.public) == ALICE.public
    assert KeyPair.of(ALICE.secret) == ALICE
    for wrong in ("", ALICE.public[:-1], ALICE.public + "x", "\u00e4" * 40, " " * 40, '"' * 40, "%%%%%" * 8):
        with pytest.raises(BadKey, match="40 characters of Z85"):
            checked(wrong)


def test_a_secret_key_is_in_no_text():
    assert ALICE.secret not in repr(ALICE)
    assert ALICE.secret not in repr(ClientKeys(server=SERVER.public, pair=ALICE))
    assert SERVER.secret not in repr(NetworkSettings(endpoint="tcp://*:5555", pair=SERVER))


# -- who comes in ---------------------------------------------------------------------------------------------


async def test_the_worker_is_told_whose_key_it_is(world):
    async with Network(world) as network, network.client(ALICE) as alice, network.client(BOB) as bob:
        assert await who(alice) == Peer(address="127.0.0.1", name="alice", role="operator")
        assert await who(bob) == Peer(address="127.0.0.1", name="bob", role="viewer")


async def test_a_stranger_is_told_at_once_and_is_on_record(world):
    async with Network(world) as network, network.client(STRANGER) as client:
        async with asyncio.timeout(10):  # far before the request's own deadline
            with pytest.raises(BrokerUnreachable, match="lets us not in") as caught:
                await who(client, timeout=60)
        assert caught.value.refused == UNKNOWN_KEY
        await until(lambda: network.refusals)
        assert network.refusals[0] == {"address": "127.0.0.1", "rule": "its key is not known", "times": 1}
        assert network.broker.counters["peers_refused"] >= 1


@pytest.mark.parametrize(
    "keys", [{"pair": ALICE, "server": STRANGER.public}, {"pair": None}], ids=["another server", "no key"]
)
async def test_who_expects_another_broker_or_has_no_key_does_not_come_in(world, keys):
    async with Network(world) as network, network.client(**keys) as client:
        with pytest.raises(BrokerUnreachable) as caught:
            await who(client, timeout=1)
        assert caught.value.refused == NO_HANDSHAKE
        await until(lambda: any(each["rule"].startswith("no handshake") for each in network.refusals))


async def test_a_broker_that_has_gone_is_not_one_that_lets_nobody_in(monkeypatch):
    async def hang_up(_reader, writer):
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Client(f"tcp://127.0.0.1:{port}") as client, asyncio.timeout(20):
        await until(lambda: client._connection.refused)
        with pytest.raises(BrokerUnreachable, match="lets us not in"):
            await client.request("echo", timeout=0.1)
        server.close()
        monkeypatch.setattr("transport.connection.REFUSED_SECONDS", 0.1)
        await until(lambda: not client._connection.refused)
        with pytest.raises(BrokerUnreachable, match="nobody listens"):
            await client.request("echo", timeout=0.1)


def greeting(version, mechanism):
    return b"\xff" + b"\0" * 8 + b"\x7f" + version + mechanism.ljust(20, b"\0") + b"\0" * 32


NULL_3 = greeting(b"\x03\x00", b"NULL") + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
CURVE_AS_NULL = greeting(b"\x03\x00", b"CURVE") + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
ZMTP_1 = b"\x01\x00" + b"\x01\x01" + b"\x07\x01MDPC02"
ZMTP_2 = b"\xff" + b"\0" * 8 + b"\x7f\x01\x05\x00\x00"
HTTP = b"GET / HTTP/1.1\r\nHost: governor\r\n\r\n"


@pytest.mark.parametrize(
    "words", [NULL_3, CURVE_AS_NULL, ZMTP_1, ZMTP_2, HTTP], ids=["NULL", "half", "1.0", "2.0", "HTTP"]
)
async def test_no_older_protocol_and_no_other_mechanism_comes_in(world, words):
    """Whoever says so gets no answer to a request, and its connection is ended."""
    request = b"\x01\x06MDPC02\x01\x01\x01\x00\x03who\x00\x00"
    async with Network(world) as network:
        reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
        writer.write(words + request)
        answered = b""
        async with asyncio.timeout(15):
            with suppress(ConnectionResetError):
                while more := await reader.read(1000):
                    answered += more
        assert b"who" not in answered
        assert len(answered) <= 64 + 64  # a greeting, an error
        writer.close()
        assert network.broker.counters["requests"] == 0


async def test_recorded_bytes_of_a_member_are_worth_nothing_again(world):
    """Handshake and request, word for word: the broker's part of each handshake is another one."""
    said, answers = bytearray(), bytearray()

    async def copy(reader, writer, into):
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                into += data
                writer.write(data)
        writer.close()

    async def relay(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", network.port)
        await asyncio.gather(copy(reader, back, said), copy(there, writer, answers))

    async with Network(world) as network, await asyncio.start_server(relay, "127.0.0.1", 0) as between:
        port = between.sockets[0].getsockname()[1]
        keys = ClientKeys(server=SERVER.public, pair=ALICE)
        async with Client(f"tcp://127.0.0.1:{port}", keys=keys, context=world.context) as alice:
            assert (await who(alice)).name == "alice"
        before = network.broker.counters["requests"]
        assert b"who" not in said
        reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
        writer.write(said)
        again = b""
        async with asyncio.timeout(15):
            with suppress(ConnectionResetError):
                while more := await reader.read(65_536):
                    again += more
        writer.close()
        assert len(again) < len(answers)
        async with network.client() as alice:
            await who(alice)
        assert network.broker.counters["requests"] == before + 1


async def test_the_network_leads_to_public_services_alone(world):
    async with Network(world) as network, network.client() as client:
        with pytest.raises(RequestNotPermitted, match="this service is not reached"):
            await client.request("closed", timeout=5)
        assert await client.request("mmi.service", b"closed", timeout=5) == [b"200"]
        body = SECRET.value, msgspec.msgpack.encode(())
        assert await client.request("mmi.members", *body, timeout=5) == [b"501"]
        assert (await who(client)).name == "alice"


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/x", "tcp://127.0.0.1"])
async def test_a_network_is_tcp(world, endpoint):
    with pytest.raises(BadEndpoint, match="tcp://address:port"):
        async with Network(world, endpoint=endpoint).broker:
            pass


# -- other keys -----------------------------------------------------------------------------------------------


async def test_a_key_that_is_taken_away_is_worth_nothing_on_an_open_connection_either(world):
    async with Network(world) as network, network.client(ALICE) as alice, network.client(BOB) as bob:
        await who(alice)
        stream = bob.stream("parts", idle_timeout=30)
        assert (await anext(stream)).body == [b"first"]
        assert await network.admit(MEMBERS[0]) == b"200"
        with pytest.raises(RequestNotPermitted, match="not known any more"):
            await anext(stream)
        with pytest.raises(RequestNotPermitted, match="not known any more"):
            await who(bob)
        assert (await who(alice)).name == "alice"
        assert await network.admit(*MEMBERS) == b"200"
        assert (await who(bob)).role == "viewer"


async def test_another_role_counts_at_once_and_ends_what_the_old_one_has_open(world):
    async with Network(world) as network, network.client(ALICE) as alice, network.client(BOB) as bob:
        streams = [client.stream("parts", idle_timeout=30) for client in (alice, bob)]
        for stream in streams:
            await anext(stream)
        await network.admit(MEMBERS[0], Member(name="bob", role="operator", public=BOB.public))
        with pytest.raises(RequestNotPermitted):
            await anext(streams[1])
        assert (await who(bob)).role == "operator"
        goes_on = asyncio.ensure_future(anext(streams[0]))
        await who(alice)
        assert not goes_on.done()
        goes_on.cancel()
        await asyncio.wait({goes_on})


async def test_other_keys_take_the_secret_and_sense(world):
    async with Network(world) as network, network.client() as client:
        assert await network.admit(secret=Secret.new()) == b"403"
        assert await network.private.request("mmi.members", SECRET.value, b"\xc1", timeout=5) == [b"400"]
        assert await network.private.request("mmi.members", SECRET.value, timeout=5) == [b"403"]
        assert (await who(client)).name == "alice"


def test_what_a_key_holds_in_the_queue_is_counted_for_all_of_its_connections():
    stage = Stage(access=ACCESS, queue_total=8, queue=8, service_wait=60)
    alice, bob = (Peer(name=member.name, role=member.role) for member in MEMBERS)

    def ask(client, peer, number):
        envelope = RequestEnvelope(number, client * 8, 60_000)
        request = mdp.ClientRequest(b"who", [envelope.frame()])
        stage.core.feed(Side.NETWORK, [client, *request.frames()], 0.0, lambda: peer)
        return stage.core.gauges["queued"]

    for number in range(20):
        ask(b"%02d" % number, alice, number)
    assert stage.core.gauges["queued"] < 8
    held = stage.core.gauges["queued"]
    assert ask(b"20", bob, 1) == held + 1


# -- strangers ------------------------------------------------------------------------------------------------


async def test_strangers_take_nobodys_place(world):
    """More connections than there may be, which say nothing: who has a key comes in, and those that are in stay."""
    limits = BrokerLimits(heartbeat=0.1, connections=8)
    async with Network(world, limits=limits) as network, network.client(ALICE) as inside:
        stream = inside.stream("parts", idle_timeout=60)
        await anext(stream)
        goes_on = asyncio.ensure_future(anext(stream))
        silent = [socket.create_connection(("127.0.0.1", network.port)) for _ in range(30)]
        async with network.client(BOB) as late:
            assert (await who(late)).name == "bob"
            assert (await who(inside)).name == "alice"
        assert network.broker.counters["connections_refused"] >= 20
        assert not goes_on.done()  # its connection is the same
        goes_on.cancel()
        await asyncio.wait({goes_on})
        for each in silent:
            each.close()
        await until(lambda: any(each["rule"].startswith("no handshake") for each in network.refusals))


async def test_members_beyond_the_bound_are_refused_as_elsewhere(world):
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(
            Network(world, limits=BrokerLimits(heartbeat=0.1, connections=5))
        )
        for _ in range(5):
            await who(await stack.enter_async_context(network.client()))
        late = await stack.enter_async_context(network.client())
        asked = asyncio.create_task(who(late, timeout=1))
        await until(lambda: network.broker.counters["connections_refused"] > 0)
        await asyncio.wait({asked})
        assert asked.exception() is None or isinstance(asked.exception(), BrokerUnreachable)


def question(address, key, mechanism=b"CURVE"):
    return [b"1.0", b"7", b"network", address, b"", mechanism, key]


async def test_the_gatekeeper_answers_by_the_key_alone():
    keeper = Gatekeeper(
        NetworkSettings(endpoint="tcp://*:1", pair=SERVER, members=MEMBERS), on_event=lambda *_, **__: None
    )
    try:
        known = zmq.utils.z85.decode(ALICE.public)
        assert keeper.answer(question(b"10.0.0.1", known)) == [
            *(b"1.0", b"7", b"200", b"OK"),
            *(ALICE.public.encode(), b""),
        ]
        for wrong in (
            question(b"10.0.0.1", zmq.utils.z85.decode(STRANGER.public)),
            question(b"10.0.0.1", known, b"NULL"),
            question(b"10.0.0.1", known, b"PLAIN"),
            question(b"10.0.0.1", known[:-1]),
            question(b"10.0.0.1", b""),
        ):
            assert keeper.answer(wrong)[2] == b"400"
        for senseless in ([], question(b"", known)[:-1], [b"2.0", *question(b"", known)[1:]]):
            assert keeper.answer(senseless) is None
        assert keeper.refused == 5
    finally:
        keeper.context.destroy(linger=0)


async def test_a_flood_of_strangers_is_a_few_lines():
    lines = []
    keeper = Gatekeeper(
        NetworkSettings(endpoint="tcp://*:1", pair=SERVER), on_event=lambda _, **data: lines.append(data)
    )
    try:
        for number in range(3_000):
            keeper.answer(question(b"10.0.%d.%d" % divmod(number, 250), b"k" * 32))
        keeper.log_refusals()
        assert len(lines) == LINES + 1
        assert lines[-1] == {"rule": "others", "times": 3_000 - LINES}
        keeper.log_refusals()
        assert len(lines) == LINES + 1
    finally:
        keeper.context.destroy(linger=0)


def _has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
async def test_an_address_of_ipv6(world):
    async with Network(world, endpoint="tcp://[::1]:*") as network, network.client() as client:
        assert (await who(client)).address == "::1"

"""Names that are not everybody's: asked for through the private socket alone, registered with a secret alone."""

from __future__ import annotations

import asyncio
import stat

import msgspec
import pytest
from rich.pretty import pretty_repr

from tests.support.broker_stage import Stage
from tests.transport.conftest_peers import echo, until
from transport import frames as mdp
from transport.access import Access, Secret
from transport.broker import Broker, BrokerSettings
from transport.broker_core import Side
from transport.envelope import ReplyStatus
from transport.errors import RequestNotPermitted

SECRET = Secret(bytes(range(32)))  # known, since it is in the names of tests
ACCESS = Access(
    public=frozenset({b"governor"}),
    reserved=frozenset({b"governor", b"run"}),
    scoped=frozenset({b"conductor"}),
    secret=SECRET,
)
OPEN = [b"governor", b"mmi.service", b"mmi.unknown"]
CLOSED = [b"run.r1", b"conductor.r1.tasks.1", b"governor2", b"governor.x", b"echo", b"Governor"]


@pytest.mark.parametrize("name", OPEN)
def test_public_names_are_open_to_all(name):
    assert ACCESS.may_ask(name)


@pytest.mark.parametrize("name", CLOSED)
def test_all_others_are_not(name):
    assert not ACCESS.may_ask(name)


@pytest.mark.parametrize(
    ("name", "shown", "permitted"),
    [
        (b"governor", SECRET.value, True),
        (b"run.r1", SECRET.value, True),
        (b"conductor.r1.tasks.1", SECRET.of(b"r1").value, True),
        (b"echo", b"", True),
        (b"governor", b"", False),
        (b"governor.sub", b"", False),
        (b"run", b"", False),
        (b"run.r1", SECRET.of(b"r1").value, False),
        (b"conductor.r1.tasks.1", SECRET.of(b"r2").value, False),
        (b"conductor.r1.tasks.1", SECRET.value, False),
        (b"conductor", SECRET.value, False),
        (b"conductor.r1.tasks.1", b"", False),
    ],
)
def test_reserved_names_take_the_secret_of_their_scope(name, shown, permitted):
    assert ACCESS.may_register(name, shown) is permitted


def test_by_default_every_name_is_open():
    assert all(Access().may_ask(name) and Access().may_register(name, b"") for name in OPEN + CLOSED)


def test_reserved_names_without_a_secret_can_not_be_registered():
    assert not msgspec.structs.replace(ACCESS, secret=None).may_register(b"run.r1", b"")


def test_a_secret_is_shown_nowhere():
    events = [
        show(what)
        for show in (repr, str, pretty_repr)
        for what in (SECRET, ACCESS, _ready(b"run.r1", SECRET))
    ]
    assert not [text for text in events if repr(SECRET.value)[2:-1] in text or SECRET.value.hex() in text]


# -- the core -----------------------------------------------------------------------------------------------


def _ready(name, secret):
    return mdp.Ready(name, 4, extended=True, secret=secret)


def _stage(name=b"run.r1"):
    stage = Stage(access=ACCESS)
    stage.worker(b"w", _ready(name, SECRET))
    assert stage.take(b"w") == []
    return stage


def test_a_closed_name_is_refused_at_once_on_the_public_side_and_reached_on_the_private_one():
    stage = _stage()
    stage.ask(b"c", 1, service=b"run.r1")
    [(number, status, _)] = stage.answers(b"c")
    assert (number, status) == (1, ReplyStatus.NOT_PERMITTED)
    assert stage.take(b"w") == []
    assert stage.core.counters.not_permitted == 1
    stage.ask(b"c", 1, service=b"run.r1", side=Side.PRIVATE)
    address, _, _ = stage.request_at(b"w")
    stage.answer(b"w", address, 1)
    assert stage.answers(b"c") == [(1, ReplyStatus.OK, [b"reply"])]


def test_a_refused_request_makes_no_service_and_a_plain_client_is_dropped():
    stage = Stage(access=ACCESS)
    stage.client(b"c", mdp.ClientRequest(b"run.r9", [b"plain"]))
    stage.ask(b"c", 1, service=b"run.r9", cancel=True)
    assert stage.take(b"c") == []
    assert stage.core.counters.not_permitted == 2
    assert stage.core.gauges["services"] == 0


def test_replies_go_to_the_side_that_asked_though_the_routing_ids_are_the_same():
    stage = _stage(b"governor")
    sides = {}
    for number, side in ((1, Side.CLIENTS), (2, Side.PRIVATE)):
        stage.ask(b"same", number, service=b"governor", side=side)
        address, _, _ = stage.request_at(b"w")
        final = mdp.WorkerFinal(address, [b"reply"])
        sides[number] = [to for to, _ in stage.core.feed(Side.WORKERS, [b"w", *final.frames()], 0.0)]
    assert sides == {1: [Side.CLIENTS], 2: [Side.PRIVATE]}


@pytest.mark.parametrize("secret", [None, Secret(bytes(32)), SECRET.of(b"r1")])
def test_a_worker_without_the_secret_is_disconnected_and_gets_nothing(secret):
    stage = _stage(b"governor")
    stage.worker(b"thief", _ready(b"governor", secret))
    assert stage.take(b"thief") == [mdp.Disconnect()]
    for number in range(4):
        stage.ask(b"c", number, service=b"governor")
    assert stage.take(b"thief") == []
    assert len(stage.take(b"w")) == 4
    assert stage.core.counters.registrations_refused == 1


def test_a_strict_worker_can_have_no_reserved_name_and_any_other():
    stage = Stage(access=ACCESS)
    stage.worker(b"w", mdp.Ready(b"run.r1"))
    assert stage.take(b"w") == [mdp.Disconnect()]
    stage.worker(b"w", mdp.Ready(b"echo"))
    assert stage.take(b"w") == []
    assert stage.core.gauges["workers"] == 1


# -- real sockets -------------------------------------------------------------------------------------------


def _broker(world, events):
    settings = BrokerSettings(
        client_endpoint=world.client_endpoint,
        worker_endpoint=world.worker_endpoint,
        private_endpoint=f"ipc://{world.folder}/private.sock",
        access=ACCESS,
    )
    return Broker(settings, on_event=lambda name, **data: events.append((name, data)))


async def test_each_socket_leads_where_it_may(world):
    events = []
    async with (
        _broker(world, events) as broker,
        world.worker("run.r1", echo, 4, secret=SECRET) as worker,
        world.worker("governor", echo, 4, secret=SECRET) as governor,
        world.client() as public,
        world.client(broker.private_endpoint) as private,
    ):
        await worker.registered()
        await governor.registered()
        assert stat.S_IMODE((world.folder / "private.sock").stat().st_mode) == 0o600
        for client in (public, private):
            assert await client.request("governor", b"x", timeout=5) == [b"x"]
            assert await client.request("mmi.service", b"run.r1", timeout=5) == [b"200"]
        assert await private.request("run.r1", b"x", timeout=5) == [b"x"]
        with pytest.raises(RequestNotPermitted, match=r"run\.r1: this service is not reached"):
            await public.request("run.r1", b"x", timeout=30)
        await until(lambda: ("broker.not_permitted", {"requests": 1, "registrations": 0}) in events)


async def test_refusals_in_a_burst_are_one_line(world):
    events = []
    async with _broker(world, events), world.client() as public:
        async with asyncio.timeout(20):
            asked = [public.request("run.r1", b"x", timeout=20) for _ in range(500)]
            assert {type(end) for end in await asyncio.gather(*asked, return_exceptions=True)} == {
                RequestNotPermitted
            }
        refused = lambda: [data["requests"] for name, data in events if name == "broker.not_permitted"]  # noqa: E731
        await until(lambda: sum(refused()) == 500)
        assert len(refused()) <= 10


async def test_repeated_refusals_are_one_line_for_each_heartbeat(world):
    events = []
    async with _broker(world, events) as broker, world.client() as public:
        begun = asyncio.get_running_loop().time()
        for _ in range(30):
            refused = public.request("run.r1", b"x", timeout=20)
            expires = public.request("governor", b"x", timeout=0.02)  # the broker looks at it when it does
            await asyncio.gather(refused, expires, return_exceptions=True)
        seconds = asyncio.get_running_loop().time() - begun
    lines = [data["requests"] for name, data in events if name == "broker.not_permitted"]
    assert sum(lines) == 30
    assert len(lines) <= 2 + seconds / broker.settings.limits.heartbeat


async def test_a_broker_that_is_restarted_with_the_same_secret_takes_its_workers_again(world):
    events = []
    async with world.worker("run.r1", echo, 4, secret=SECRET) as worker:
        for _ in range(2):
            async with _broker(world, events) as broker, world.client(broker.private_endpoint) as client:
                assert await client.request("run.r1", b"x", timeout=10) == [b"x"]
    assert worker.conversations == 2


async def test_an_unauthorised_peer_at_the_workers_socket_gets_no_request(world):
    stolen, events = [], []

    async def steal(request):
        stolen.append(request.body)
        return [b"stolen"]

    async with (
        _broker(world, events),
        world.worker("governor", echo, 4, secret=SECRET) as governor,
        world.worker("governor", steal, 4),
        world.client() as client,
    ):
        await governor.registered()
        await until(lambda: any(data.get("registrations") for _, data in events))
        for number in range(20):
            assert await client.request("governor", b"%d" % number, timeout=5) == [b"%d" % number]
    assert stolen == []

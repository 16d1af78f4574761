"""A flood arrives at an unprotected socket: otherwise a campaign without findings would prove nothing."""

import pytest
import zmq

from tests.faults import flood
from transport.envelope import read_request
from transport.frames import ClientRequest, parse_client
from transport.sockets import FRAMES_LIMIT


@pytest.fixture
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("f") / "s")


@pytest.fixture
def router(path):
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.set(zmq.RCVTIMEO, 10_000)
    socket.bind(f"ipc://{path}")
    yield socket
    socket.close(linger=0)


def test_frames_arrive_as_one_message(router, path, monkeypatch):
    monkeypatch.setattr(flood, "FRAMES", 10 * flood.WRITE)
    peer = flood.frames(path)
    _, *frames = router.recv_multipart()
    peer.close()
    assert len(frames) == 10 * flood.WRITE + 1 > FRAMES_LIMIT
    assert set(frames) == {b""}


def test_messages_are_requests_to_the_daemon_and_to_unknown_services(router, path, monkeypatch):
    monkeypatch.setattr(flood, "MESSAGES", 4 * flood.CLIENTS)
    monkeypatch.setattr(flood, "APART_SECONDS", 0.0)
    dealers = flood.messages(path)
    commands = [parse_client(router.recv_multipart()[1:]) for _ in range(flood.MESSAGES)]
    for dealer in dealers:
        dealer.close(linger=0)
    assert all(type(each) is ClientRequest and read_request(each.body[0]) for each in commands)
    services = [each.service for each in commands]
    assert services.count(b"governor") == flood.MESSAGES / 2
    assert len(set(services)) == flood.MESSAGES / 2 + 1


def test_all_connections_are_open_at_once(router, path, monkeypatch):
    monkeypatch.setattr(flood, "CONNECTIONS", 200)
    met = router.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    met.set(zmq.RCVTIMEO, 10_000)
    peers = flood.connections(path)
    events = [int.from_bytes(met.recv_multipart()[0][:2], "little") for _ in range(200)]
    router.disable_monitor()
    met.close(linger=0)
    for peer in peers:
        peer.close()
    assert len(peers) == 200
    assert set(events) == {zmq.EVENT_HANDSHAKE_SUCCEEDED}

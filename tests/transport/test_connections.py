"""How many connections a limit of open files allows. The bound at work: `test_hostile_peers.py`."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

import pytest
import zmq

from transport.connections import OWN_FILES, UNSEEN, BoundedConnections, bound_of_each
from transport.errors import TooFewFiles
from transport.file_limits import LEAST_FILES, file_limits


@pytest.mark.parametrize("files", [LEAST_FILES, 2_048, 4_096, 20_000, 1_048_576])
def test_the_reserve_is_what_libzmq_accepts_unseen_or_three_quarters(files):
    bound = bound_of_each(files=files, sockets=2, most=10_000)
    reserve = files - OWN_FILES - 2 * bound
    assert reserve >= min(2 * UNSEEN, (files - OWN_FILES) * 3 // 4)
    assert 100 < bound <= 10_000


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_number_that_another_socket_has_by_now_is_left_alone():
    """Numbers of descriptors come again: one that is to be refused may be closed, and be another socket's by then."""
    context = zmq.Context()
    bound, other = context.socket(zmq.ROUTER), socket.create_server(("127.0.0.1", 0))
    bound.bind("tcp://127.0.0.1:*")
    connections = BoundedConnections(bound, most=0, on_full=lambda _: None)
    client = socket.create_connection(other.getsockname())
    accepted, _ = other.accept()
    connections._happened(zmq.EVENT_ACCEPTED, accepted.fileno())
    assert connections.refused == 1
    accepted.sendall(b"still here")
    assert client.recv(10) == b"still here"
    client.close()
    accepted.close()
    gone = os.dup(other.fileno())
    os.close(gone)
    before = open_descriptors()
    connections._happened(zmq.EVENT_ACCEPTED, gone)
    file = os.open("/dev/null", os.O_RDONLY)
    connections._happened(zmq.EVENT_ACCEPTED, file)
    os.close(file)
    assert open_descriptors() <= before
    other.close()
    connections.close()
    context.destroy(linger=0)


def test_too_few_files_are_refused_with_the_number_that_is_needed():
    with pytest.raises(TooFewFiles, match="limit of open files is 1023, a broker needs 1024"):
        bound_of_each(files=1_023, sockets=2, most=10_000)


def test_no_limit_is_a_large_one(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert bound_of_each(files=file_limits()[0], sockets=2, most=10_000) == 10_000

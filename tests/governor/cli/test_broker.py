"""`governor broker`, as a process of its own with plain sockets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import zmq

LIMIT = 20
GOVERNOR = [sys.executable, "-m", "governor", "broker"]


def ended(*arguments):
    return subprocess.run([*GOVERNOR, *arguments], capture_output=True, text=True, check=False, timeout=60)


@contextmanager
def broker(*arguments):
    """A broker that has started, with its first line; it is killed at the end, if it has not left."""
    with subprocess.Popen([*GOVERNOR, "--log-format", "json", *arguments], stderr=subprocess.PIPE) as process:
        try:
            started = json.loads(process.stderr.readline())
            assert started["event"] == "broker.started"
            yield process, started
        finally:
            process.kill()


@contextmanager
def dealer(endpoint, *first):
    with zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, LIMIT * 1000)
        socket.connect(endpoint)
        socket.send_multipart(list(first))
        yield socket


def served(endpoint, workers):
    """A round trip."""
    with dealer(workers, b"MDPW02", b"\x01", b"echo") as worker:
        assert worker.recv_multipart()[1] == b"\x05", "registered"
        with dealer(endpoint, b"MDPC02", b"\x01", b"echo", b"hello") as client:
            _, _, address, _, body = worker.recv_multipart()
            worker.send_multipart([b"MDPW02", b"\x04", address, b"", body])
            assert client.recv_multipart() == [b"MDPC02", b"\x03", b"echo", b"hello"]


def test_clients_and_workers_share_a_socket(tmp_path):
    with broker("--listen", f"ipc://{tmp_path}/b") as (_, started):
        assert started["worker_endpoint"] == started["client_endpoint"]
        served(started["client_endpoint"], started["client_endpoint"])


def test_workers_have_a_socket_of_their_own_if_it_is_asked_for(tmp_path):
    with broker("--listen", "tcp://127.0.0.1:*", "--workers", f"ipc://{tmp_path}/w") as (_, started):
        assert started["worker_endpoint"] == f"ipc://{tmp_path}/w"
        served(started["client_endpoint"], started["worker_endpoint"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order(tmp_path, number):
    with broker("--listen", f"ipc://{tmp_path}/b") as (process, started):
        with dealer(started["client_endpoint"], b"MDPW02", b"\x01", b"echo") as worker:
            assert worker.recv_multipart() == [b"MDPW02", b"\x05"]
            process.send_signal(number)
            while (frames := worker.recv_multipart()) == [b"MDPW02", b"\x05"]:
                pass
            assert frames == [b"MDPW02", b"\x06"]
        assert process.wait(LIMIT) == 0
        assert json.loads(process.stderr.read().splitlines()[-1])["event"] == "broker.stopped"
    assert not [*tmp_path.iterdir()]


def test_its_counters_are_written_when_it_is_asked_for_them(tmp_path):
    with broker("--listen", f"ipc://{tmp_path}/b") as (process, started):
        served(started["client_endpoint"], started["client_endpoint"])
        process.send_signal(signal.SIGUSR1)
        counters = json.loads(process.stderr.readline())
        assert (counters["event"], counters["requests"], counters["finals"]) == ("broker.counters", 1, 1)


def test_a_worker_that_works_in_silence_has_time_if_it_is_given_some(tmp_path):
    listen = f"ipc://{tmp_path}/b"
    for liveness, is_there in (("1000", True), ("2", False)):
        with (
            broker("--listen", listen, "--heartbeat", "50ms", "--liveness", liveness) as (process, started),
            dealer(started["client_endpoint"], b"MDPW02", b"\x01", b"echo") as worker,
        ):
            for _ in range(12):  # heartbeats of the broker, as long as it knows the worker
                if not worker.poll(2_000):
                    break
                assert worker.recv_multipart() == [b"MDPW02", b"\x05"]
            process.send_signal(signal.SIGUSR1)
            counters = json.loads(process.stderr.readline())
            assert (counters["workers"], counters["workers_lost"]) == (is_there, not is_there)


def test_another_one_at_the_same_place_may_be_tried_again(tmp_path):
    listen = f"ipc://{tmp_path}/b"
    with broker("--listen", listen) as (_, started):
        second = ended("--listen", listen)
        assert second.returncode == 75
        assert "another process listens there" in second.stderr or "in use" in second.stderr
        served(started["client_endpoint"], started["client_endpoint"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "tcp://0.0.0.0:5555"], "loopback only"),
        (["--listen", "echo"], "expected ipc:///path or tcp://address:port"),
        (["--workers", "ipc://relative"], "absolute"),
        (["--heartbeat", "often"], "no duration"),
        (["--heartbeat", "0"], "takes time"),
        (["--liveness", "1"], "not in the range"),
        (["--log-level", "loud"], "'loud' is not one of"),
        (["--log-format", "pretty"], "'pretty' is not one of"),
    ],
)
def test_what_makes_no_sense_is_told_with_what_to_do(arguments, words):
    done = ended(*arguments)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr

from __future__ import annotations

import socket
import stat

import pytest

from transport import endpoints
from transport.errors import BadEndpoint, CannotBind, EndpointInUse


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected"),
        ("inproc://x", "expected"),
        ("ipc://relative/path", "absolute"),
        ("ipc:///a\0b", "absolute"),
        ("ipc:///" + "x" * 107, "108 bytes"),
        ("tcp://127.0.0.1", "expected"),
        ("tcp://:5555", "expected"),
        ("tcp://127.0.0.1:0", "port"),
        ("tcp://127.0.0.1:65536", "port"),
        ("tcp://127.0.0.1:http", "port"),
    ],
)
def test_a_bad_endpoint_is_an_error_with_the_reason(text, reason):
    with pytest.raises(BadEndpoint, match=reason):
        endpoints.parse(text)


def test_the_longest_path_is_allowed():
    text = "ipc:///" + "x" * 106
    assert str(endpoints.parse(text)) == text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_loopback_may_be_bound(host):
    assert endpoints.parse_bind(f"tcp://{host}:5555").is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "192.168.0.1", "[::]", "example.org", "eth0"])
def test_other_addresses_may_not_be_bound(host):
    with pytest.raises(BadEndpoint, match="loopback"):
        endpoints.parse_bind(f"tcp://{host}:5555")
    assert endpoints.parse_connect("tcp://192.168.0.1:5555").port == 5555


def test_a_wildcard_port_is_for_binding_only():
    assert str(endpoints.parse_bind("tcp://[::1]:*")) == "tcp://[::1]:*"
    with pytest.raises(BadEndpoint, match="port"):
        endpoints.parse_connect("tcp://127.0.0.1:*")


@pytest.mark.parametrize("host", ["*", "a b", "ä", "[::1", "::g", "[]"])
def test_what_is_no_machine_is_not_connected_to(host):
    with pytest.raises(BadEndpoint, match="machine to connect to"):
        endpoints.parse_connect(f"tcp://{host}:5555")


@pytest.mark.parametrize("host", ["lab-7.example.org", "node_3", "10.0.0.1", "[fe80::1%eth0]", "::1"])
def test_machines_are_names_and_addresses(host):
    assert endpoints.parse_connect(f"tcp://{host}:5555").port == 5555


def test_a_folder_that_is_made_is_private(tmp_path):
    endpoints.prepare_ipc(endpoints.parse(f"ipc://{tmp_path}/run/b.sock"))
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_stale_socket_is_removed_a_live_one_and_a_file_are_not(tmp_path):
    path = tmp_path / "b.sock"
    endpoint = endpoints.parse(f"ipc://{path}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(EndpointInUse, match="another process"):
            endpoints.prepare_ipc(endpoint)
    assert path.exists()
    endpoints.prepare_ipc(endpoint)
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(EndpointInUse, match="no socket"):
        endpoints.prepare_ipc(endpoint)
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotBind, match="file"):
        endpoints.prepare_ipc(endpoints.parse(f"ipc://{tmp_path}/file/b.sock"))

"""Where a daemon listens for clients on other machines is tried before the broker is started."""

import socket

import pytest

from governor import config
from governor.errors import ConfigError, TryAgain
from governor.network import listening


def settings_at(listen, tmp_path):
    return listening.settings_of(
        config.load(options={"network.listen": listen, "network.keys": tmp_path / "keys"})
    )


@pytest.mark.parametrize("host", ["lab..example.org", "a" * 64])
def test_a_host_that_is_no_address_and_no_name_is_a_fault_of_the_configuration(tmp_path, host):
    """A broker would be started with it again and again."""
    with pytest.raises(ConfigError, match="no address, and no name") as caught:
        settings_at(f"tcp://{host}:5555", tmp_path)
    assert host in caught.value.faults[0]
    assert caught.value.exit_code == 78


def test_a_name_that_nobody_knows_does_not_reach_the_broker(tmp_path):
    """It ends with 78, or with 75 where no name server answers: one may do so later."""
    with pytest.raises((ConfigError, TryAgain), match=r"cannot listen at tcp://no-such-host\.invalid:5555: "):
        settings_at("tcp://no-such-host.invalid:5555", tmp_path)


def test_a_network_interface_is_left_to_the_broker(tmp_path):
    name = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    found = settings_at(f"tcp://{name}:5555", tmp_path)
    assert found is not None
    assert found.endpoint == f"tcp://{name}:5555"


def test_an_address_of_another_machine_is_a_fault_and_a_port_in_use_is_tried_again(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot listen at tcp://192\.0\.2\.250:5555"):
        settings_at("tcp://192.0.2.250:5555", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(TryAgain, match="end the process that has the port"):
            settings_at(f"tcp://127.0.0.1:{port}", tmp_path)

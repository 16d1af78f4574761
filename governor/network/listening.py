"""What the daemon's broker is told of the network: where it listens, its own key, and who comes in."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from governor.errors import ConfigError, TryAgain
from governor.network.keys import KeyFolder
from transport import endpoints
from transport.network.curve import NetworkSettings

if TYPE_CHECKING:
    from governor.config import Config
    from transport.network.curve import Member


def settings_of(config: Config) -> NetworkSettings | None:
    """None for a daemon that is not reached through the network. Blocks. Raises ConfigError, and TryAgain for a port in use."""
    if config.network.listen is None:
        return None
    folder = KeyFolder(config.keys)
    settings = NetworkSettings(endpoint=config.network.listen, pair=folder.server(), members=folder.members())
    _try_to_listen(endpoints.parse_bind(settings.endpoint, keyed=True))
    return settings


def members_of(config: Config) -> tuple[Member, ...]:
    """Who comes in now. Blocks. Raises ConfigError."""
    return KeyFolder(config.keys).members() if config.network.listen is not None else ()


def _try_to_listen(endpoint: endpoints.Endpoint) -> None:
    """A broker that cannot listen is started again and again: better said at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            None if endpoint.host == "*" else endpoint.host,
            endpoint.port or 0,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
    except (OSError, UnicodeError) as error:
        if _is_interface(endpoint.host or ""):
            return
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
            raise TryAgain(f"cannot listen at {endpoint}: {error.strerror} ({endpoint.host!r})") from error
        fault = (
            f"cannot listen at {endpoint}: {endpoint.host!r} is no address, and no name of an address or a network interface; "
            "write an address of this machine, or 0.0.0.0 for all of them"
        )
        raise ConfigError("network.listen", [fault]) from error
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise TryAgain(
                f"cannot listen at {endpoint}: {error.strerror}; end the process that has the port, or choose another one "
                "(network.listen)"
            ) from error
        raise ConfigError("network.listen", [f"cannot listen at {endpoint}: {error.strerror}"]) from error


def _is_interface(host: str) -> bool:
    try:
        socket.if_nametoindex(host)
    except (OSError, UnicodeError):
        return False
    return True

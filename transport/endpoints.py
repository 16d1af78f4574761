"""Endpoints: which addresses may be bound or connected to, with the errors for others.

Rules:
1. ``ipc:///absolute/path`` of at most 107 bytes (sun_path has 108, the last one is NUL), or ``tcp://address:port``.
2. tcp is bound to loopback only where there are no keys: any process that can connect may register a service.
3. Stale socket files are removed, live ones never: libzmq itself would unlink a socket in use.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
from pathlib import Path
from typing import Final, Literal

import msgspec

from transport.errors import BadEndpoint, CannotBind, EndpointInUse

IPC_PATH_LIMIT: Final = 107
_PORT_LIMIT: Final = 65535
_MACHINE: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed endpoint. `path` is set for ipc; `host` and `port` (None: any free one) for tcp."""

    scheme: Literal["ipc", "tcp"]
    path: Path | None = None
    host: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        if self.scheme == "ipc":
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in (self.host or "") else self.host
        return f"tcp://{host}:{'*' if self.port is None else self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host is None:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(endpoint: str) -> Endpoint:
    """Parse `endpoint`.

    Raises:
        BadEndpoint: with the reason, for a person.
    """
    scheme, separator, address = endpoint.partition("://")
    if not separator or scheme not in {"ipc", "tcp"}:
        raise BadEndpoint(endpoint, "expected ipc:///path or tcp://address:port")
    return _parse_ipc(endpoint, address) if scheme == "ipc" else _parse_tcp(endpoint, address)


def parse_bind(endpoint: str, *, keyed: bool = False) -> Endpoint:
    """Parse an endpoint that is to be bound: as `parse`, and loopback only for tcp, or tcp only where its peers are `keyed`."""
    parsed = parse(endpoint)
    if keyed and parsed.scheme != "tcp":
        raise BadEndpoint(endpoint, "a network is reached over tcp://address:port")
    if not (keyed or parsed.is_loopback):
        raise BadEndpoint(endpoint, "tcp is bound to loopback only (127.0.0.1 or ::1)")
    return parsed


def parse_connect(endpoint: str) -> Endpoint:
    """Parse an endpoint that is to be connected to: as `parse`, and for tcp with a machine and a port."""
    parsed = parse(endpoint)
    if parsed.scheme == "tcp" and parsed.port is None:
        raise BadEndpoint(endpoint, "a port number is needed to connect")
    if parsed.host is not None and not _is_machine(parsed.host):
        raise BadEndpoint(endpoint, f"{parsed.host!r} is no name or address of a machine to connect to")
    return parsed


def _is_machine(host: str) -> bool:
    if ":" not in host:
        return _MACHINE.fullmatch(host) is not None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse_ipc(endpoint: str, address: str) -> Endpoint:
    if "\0" in address or not address.startswith("/"):
        raise BadEndpoint(endpoint, "the path of an ipc endpoint is absolute")
    length = len(os.fsencode(address))
    if length > IPC_PATH_LIMIT:
        raise BadEndpoint(
            endpoint,
            f"the path has {length} bytes, a unix socket's at most {IPC_PATH_LIMIT}: use a shorter folder",
        )
    return Endpoint(scheme="ipc", path=Path(address))


def _parse_tcp(endpoint: str, address: str) -> Endpoint:
    host, separator, port = address.rpartition(":")
    if not separator or not host:
        raise BadEndpoint(endpoint, "expected tcp://address:port")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if host == "localhost":
        host = "127.0.0.1"
    if port == "*":
        return Endpoint(scheme="tcp", host=host, port=None)
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_LIMIT):
        raise BadEndpoint(endpoint, f"{port!r} is no port number (1 to {_PORT_LIMIT}, or * for any)")
    return Endpoint(scheme="tcp", host=host, port=int(port))


def prepare_ipc(endpoint: Endpoint) -> None:
    """Prepare a bind: make the folder (0700) if it is missing, remove a stale socket.

    Raises:
        EndpointInUse: another process listens there, or the path is no socket.
        CannotBind: the folder cannot be made or read, or the socket is another user's.
    """
    path = endpoint.path
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.lstat().st_mode
        if not stat.S_ISSOCK(mode):
            raise EndpointInUse(str(endpoint), "the path exists and is no socket")
        if _is_listening(path):
            raise EndpointInUse(str(endpoint), "another process listens there")
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotBind(str(endpoint), f"{error.strerror}: {error.filename or path}") from error


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True  # its backlog is full
        return True


def file_of(endpoint: Endpoint) -> tuple[int, int] | None:
    """Return the identity of the file at an ipc endpoint (device, inode); None where there is none."""
    try:
        found = None if endpoint.path is None else endpoint.path.lstat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def remove_ipc(endpoint: Endpoint, file: tuple[int, int] | None) -> None:
    """Remove the socket file of a closed endpoint, if it is still this `file`. Safe to call twice."""
    if endpoint.path is not None and file is not None and file_of(endpoint) == file:
        endpoint.path.unlink(missing_ok=True)

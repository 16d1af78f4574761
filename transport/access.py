"""Access control: which services clients may ask for, and which names workers may register. Pure.

Rules:
1. A name's part before the first dot is its kind, the next part its scope: ``conductor.<scope>.<rest>``.
2. A secret is sent to the broker, never back, and is in no log: its `repr` is empty.
3. Secrets of scopes are derived: from one of them neither another one nor the original can be computed.
4. Who sent a request is told by the kernel, or by the key of the connection, to the broker, and by the broker to the worker:
   nothing that a client sends is part of it.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

SECRET_BYTES: Final = 32
_ADDRESS_LIMIT: Final = 64


class Secret(msgspec.Struct, frozen=True):
    """`SECRET_BYTES` bytes that prove a right."""

    value: bytes

    @classmethod
    def new(cls) -> Self:
        return cls(os.urandom(SECRET_BYTES))

    def of(self, scope: bytes) -> Secret:
        """The secret of a scope: HMAC-SHA256."""
        return Secret(hmac.digest(self.value, scope, "sha256"))

    def matches(self, shown: object) -> bool:
        """Whether `shown` is this secret, in constant time."""
        return type(shown) is bytes and hmac.compare_digest(self.value, shown)

    def __repr__(self) -> str:
        return "Secret()"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Peer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who sent a request. `uid`, `gid` and `pid` are those of the process that connected (SO_PEERCRED), on an ipc socket;
    `address` is that of its machine, on a tcp socket; `name` and `role` are those of its key, on that of the network. What is
    not known is None or empty.
    """

    uid: int | None = None
    gid: int | None = None
    pid: int | None = None
    address: str = ""
    name: str = ""
    role: str = ""

    @classmethod
    def told(cls, address: str, *, local: bool) -> Self:
        """From libzmq's `Peer-Address`: that of a `local` socket ends in ``:uid:gid:pid``."""
        if not local:
            return cls(address=address[:_ADDRESS_LIMIT])
        with suppress(ValueError):
            uid, gid, pid = map(int, address.split(":")[-3:])
            return cls(uid, gid, pid)
        return cls()

    @classmethod
    def read(cls, stamp: bytes) -> Self | None:
        """From what `stamp` wrote; None where it is something else."""
        with suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(stamp, type=cls)
        return None

    def stamp(self) -> bytes:
        return msgspec.msgpack.encode(self)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Which names are open; by default all, as in RFC 18.

    `public`: the services that clients of the public socket may ask for, besides ``mmi.``; None: all.
    `secret`: workers must send it in READY for a name of the kinds `reserved`; for one of the kinds `scoped` they must send
    the secret of the name's scope. `stamped`: the services whose workers are told who sent a request (`Peer`).
    """

    public: frozenset[bytes] | None = None
    reserved: frozenset[bytes] = frozenset()
    scoped: frozenset[bytes] = frozenset()
    secret: Secret | None = None
    stamped: frozenset[bytes] = frozenset()

    def may_ask(self, service: bytes) -> bool:
        return self.public is None or service in self.public or service.startswith(b"mmi.")

    def may_register(self, service: bytes, shown: bytes) -> bool:
        kind, _, rest = service.partition(b".")
        if kind in self.scoped:
            scope, _, _ = rest.partition(b".")
            return self.secret is not None and self.secret.of(scope).matches(shown)
        if kind in self.reserved:
            return self.secret is not None and self.secret.matches(shown)
        return True

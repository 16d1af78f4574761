"""Keys of CURVE (RFC 26): each peer has a pair of them, and a client knows the public one of its broker.

A key is 32 bytes, written as 40 characters of Z85 (RFC 32).
"""

from __future__ import annotations

import struct
from typing import Any, Self

import msgspec
import zmq
from zmq.utils import z85

from transport.errors import BadKey

KEY_CHARACTERS = 40


def checked(key: str) -> str:
    """Return `key` if it is one. Raises BadKey."""
    try:
        if len(key) == KEY_CHARACTERS and len(z85.decode(key.encode("ascii"))) * 5 == KEY_CHARACTERS * 4:
            return key
    except (UnicodeEncodeError, KeyError, ValueError, struct.error):
        pass
    raise BadKey(f"a key has {KEY_CHARACTERS} characters of Z85")


class KeyPair(msgspec.Struct, frozen=True):
    """The secret key is in no log: it is no part of the `repr`."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> Self:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def of(cls, secret: str) -> Self:
        """The pair of a secret key. Raises BadKey."""
        return cls(zmq.curve_public(checked(secret).encode()).decode(), secret)

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("public", self.public)]


class ClientKeys(msgspec.Struct, frozen=True, kw_only=True):
    """A client's own pair, and the public key of its broker."""

    server: str
    pair: KeyPair


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Who comes in with this `public` key. What a role may do is for the services to know."""

    name: str
    role: str
    public: str


class Members(msgspec.Struct, frozen=True):
    """All who come in."""

    members: tuple[Member, ...]


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A socket for clients on other machines: only `members` come in, and know the broker by the public key of `pair`."""

    endpoint: str
    pair: KeyPair
    members: tuple[Member, ...] = ()

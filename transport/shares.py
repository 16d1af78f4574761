"""Room that peers share, so that no peer uses all of it.

A peer may take as much as is still free (a dynamic threshold, Choudhury and Hahne, 1998): one alone gets half of the
room, two get a third each, and a new peer always finds some. Constant time, nothing is ever taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class Shares:
    """`limit` units of room. What was taken must be given back, by the same peer."""

    __slots__ = ("_by_peer", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._by_peer: dict[Hashable, int] = {}

    def fits(self, peer: Hashable, amount: int = 1, *, reserved: int = 0) -> bool:
        """Whether `peer` may take `amount` while `reserved` units are not for peers."""
        free = self.limit - self.taken - reserved
        return amount <= free and self._by_peer.get(peer, 0) <= free

    def take(self, peer: Hashable, amount: int = 1) -> None:
        """Take `amount`, also where it doesn't fit: check with `fits` first."""
        if not amount:
            return
        self.taken += amount
        self._by_peer[peer] = self._by_peer.get(peer, 0) + amount

    def give_back(self, peer: Hashable, amount: int = 1) -> None:
        """Give back what was taken."""
        if not amount:
            return
        self.taken -= amount
        left = self._by_peer[peer] - amount
        if left:
            self._by_peer[peer] = left
        else:
            del self._by_peer[peer]

    def forget(self, peer: Hashable) -> None:
        """Give back all that `peer` has."""
        self.taken -= self._by_peer.pop(peer, 0)

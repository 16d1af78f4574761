"""Callables and arguments that are no plain data: they travel through Ray's own key-value store, pickled.

Rules:
1. Nothing is unpickled that came over a socket of ours: Ray guards its store with its token.
2. The driver stores an object once, and deletes all that it stored when it closes.
3. What is fetched is kept by the runner, the latest used `KEPT` of them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ray import cloudpickle
from ray.experimental import internal_kv

from governor.tasks import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from governor.tasks.cluster import Cluster

PREFIX: Final = "pickled:"
KEPT: Final = 256
PACKED: Final = 1_000
NAMESPACE: Final = b"governor-tasks"


class Functions:
    """The driver's side."""

    def __init__(self, cluster: Cluster) -> None:
        self._stored: set[str] = set()
        self._names: dict[int, tuple[Any, str]] = {}
        """By identity; the object is held so that its identity stays its own."""
        self._run = cluster.namespace

    def name_call(self, call: Callable[..., Any] | str) -> str:
        """``module:attribute`` as it is; else the name under which a runner fetches the object.

        Raises TypeError, naming it, for what cannot be called or pickled.
        """
        if isinstance(call, str):
            module, colon, attribute = call.partition(":")
            if not (module and colon and attribute):
                raise TypeError(f'"{call}" is not of the form module:attribute')
            return call
        calls.require_callable(call, repr(call))
        return self._name(call)

    def name_many(self, things: Sequence[Callable[..., Any]]) -> list[str]:
        """Names for many callables, which are stored `PACKED` at a time: a graph of 100,000 is stored in seconds."""
        names: list[str] = []
        for start in range(0, len(things), PACKED):
            pack = things[start : start + PACKED]
            for thing in pack:
                calls.require_callable(thing, _short(thing))
            name = self._store(cloudpickle_of(list(map(cloudpickle_of, pack))))
            names += [f"{name}#{place}" for place in range(len(pack))]
        return names

    def name_args(self, args: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Plain arguments as they are; else the name under which a runner fetches them. Raises TypeError."""
        if not args:
            return {}, ""
        plain = dict(args)
        return ({}, self._name(plain)) if not _is_plain(plain) else (plain, "")

    def close(self) -> None:
        """Deletes what was stored. Ray must still be connected; if it is lost, so is the store."""
        for name in self._stored:
            try:
                internal_kv._internal_kv_del(name, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
            except Exception:  # noqa: BLE001  # Ray is gone, and the store with it
                return
        self._stored.clear()

    def _name(self, thing: Any) -> str:
        known = self._names.get(id(thing))
        if known is not None:
            return known[1]
        name = self._store(cloudpickle_of(thing))
        self._names[id(thing)] = (thing, name)
        return name

    def _store(self, pickled: bytes) -> str:
        name = f"{PREFIX}{self._run}/{hashlib.sha256(pickled).hexdigest()}"
        if name not in self._stored:
            internal_kv._internal_kv_put(name, pickled, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
            self._stored.add(name)
        return name


def cloudpickle_of(thing: Any) -> bytes:
    """Raises TypeError, naming it, for what cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"{_short(thing)} cannot be sent to a runner: {type(error).__name__}: {error}"
        ) from error
    return pickled


@lru_cache(maxsize=KEPT)
def fetch(name: str) -> Any:
    """The object of this name, on the runner's side. Raises LookupError, or what its unpickling raises."""
    pack, packed, place = name.partition("#")
    return cloudpickle.loads(_fetch_stored(pack)[int(place)]) if packed else _fetch_stored(name)


@lru_cache(maxsize=KEPT)
def _fetch_stored(name: str) -> Any:
    pickled = internal_kv._internal_kv_get(name, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
    if pickled is None:
        raise LookupError(f"{name} is not in Ray's store any more: its driver has ended")
    return cloudpickle.loads(pickled)


def _is_plain(value: Any) -> bool:
    """Whether it is None, bool, int of 64 bits, float, str, bytes, or lists and dicts (text keys) of such."""
    if value is None or type(value) in (bool, float, str, bytes):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**64
    if type(value) is list:
        return all(map(_is_plain, value))
    return (
        type(value) is dict and all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    )


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 200 else f"{text[:200]}..."

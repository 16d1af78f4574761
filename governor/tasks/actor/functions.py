"""Callables and arguments that are no plain data: they travel through Ray's own key-value store, pickled.

Rules:
1. Nothing is unpickled that came over a socket of ours: Ray guards its store with its token.
2. What can change between two calls is pickled at each; a function that is called, once. Equal pickles are stored once, and
   deleted when all who named them have released them, the rest when the driver closes.
3. A runner keeps pickles, the latest used `KEPT_BYTES` of them, and makes a new object for each who asks: runs do not
   see each other. Functions and classes alone are shared.
4. A class of the driver's script travels once, not with each object: by value it is 5 kB and 0.2 ms.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import threading
from collections import Counter, OrderedDict
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from ray import cloudpickle
from ray.experimental import internal_kv

from governor.tasks.actor import calls
from governor.tasks.exchange import values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from governor.tasks.fleet.cluster import Cluster

PREFIX: Final = "pickled:"
CODE: Final = "code"
DATA: Final = "data"
KEPT: Final = 256
"""Functions and classes that a runner keeps."""
KEPT_BYTES: Final = 64 * 1024 * 1024
PACKED: Final = 1_000
PACKED_BYTES: Final = 256 * 1024
"""A runner that wants one object fetches its whole pack."""
NAMESPACE: Final = b"governor-tasks"


class Functions:
    """The driver's side. Safe to use from any thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._users: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._names: dict[int, tuple[Any, str]] = {}
        """Of what is called and is a function or class, by identity; held so that their identity stays their own."""
        self._prefix = f"{PREFIX}{cluster.namespace}/"

    def name_call(self, call: Callable[..., Any] | str) -> str:
        """``module:attribute`` as it is; else the name under which a runner fetches the object.

        Raises TypeError, naming it, for what cannot be called or pickled.
        """
        if isinstance(call, str):
            module, colon, attribute = call.partition(":")
            if not (module and colon and attribute):
                raise TypeError(f'"{call}" is not of the form module:attribute')
            return call
        calls.require_callable(call)
        return self._name_code(call) if _is_code(call) else self._name_data(call)

    def name_many(self, things: Sequence[Any], labels: Sequence[str]) -> list[str]:
        """Names for many callable objects, which are stored in packs: a graph of 100,000 is stored in seconds. What
        stands before the first ``#`` of a name is that of their class.

        Raises TypeError, with its label, for what cannot be called or pickled; no object is stored then.
        """
        pickler = _Pickler(self._store_class)
        pickles: list[bytes] = []
        for thing, label in zip(things, labels, strict=True):
            calls.require_callable(thing, label)
            pickles.append(pickler.pickle(thing, label))
        places: list[str] = []
        for pack in _packs(pickles):
            name = self._store(DATA, cloudpickle_of(pack))
            places += [f"#{name}#{place}" for place in range(len(pack))]
        return [f"{PREFIX}{_kind(thing)}{place}" for thing, place in zip(things, places, strict=True)]

    def name_args(self, args: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Plain arguments as they are; else the name under which a runner fetches them. Raises TypeError."""
        if not args:
            return {}, ""
        plain = dict(args)
        return (plain, "") if _is_plain(plain) else ({}, self._name_data(plain))

    def release(self, names: Collection[str]) -> None:
        """Whoever was given these names by `name_many` needs them no more. Calls into Ray."""
        with self._lock:
            for name in {name.split("#")[1] for name in names}:
                self._users[name] -= 1
                if self._users[name] <= 0:
                    del self._users[name]
                    internal_kv._internal_kv_del(name, namespace=NAMESPACE)  # noqa: SLF001  # its only interface

    def close(self) -> None:
        """Deletes what was stored. Ray must still be connected; if it is lost, so is the store."""
        with self._lock:
            stored, self._users = self._users, Counter()
        if not stored:
            return
        try:
            internal_kv._internal_kv_del(self._prefix, del_by_prefix=True, namespace=NAMESPACE)  # noqa: SLF001  # as above
        except Exception:  # noqa: BLE001  # Ray is gone, and the store with it
            return

    def _name_code(self, thing: Any) -> str:
        known = self._names.get(id(thing))
        if known is None:
            known = self._names[id(thing)] = (thing, self._store(CODE, cloudpickle_of(thing)))
        return known[1]

    def _name_data(self, thing: Any) -> str:
        return self._store(DATA, _Pickler(self._store_class).pickle(thing))

    def _store_class(self, kind: type) -> str:
        return self._store(CODE, cloudpickle_of(kind))

    def _store(self, kind: str, pickled: bytes) -> str:
        name = f"{self._prefix}{kind}/{hashlib.sha256(pickled).hexdigest()}"
        with self._lock:
            if name not in self._users:
                internal_kv._internal_kv_put(name, pickled, namespace=NAMESPACE)  # noqa: SLF001  # as above
            self._users[name] += 1
        return name


class _Pickler(cloudpickle.CloudPickler):
    """Pickles one object after the other; names the classes of the script in place of pickling them."""

    def __init__(self, name_class: Callable[[Any], str]) -> None:
        self._into = io.BytesIO()
        super().__init__(self._into)  # type: ignore[no-untyped-call]
        self._name_class = name_class
        self._classes: dict[type, str] = {}

    def persistent_id(self, thing: Any) -> str | None:
        if not isinstance(thing, type) or not _is_of_script(thing):
            return None
        if thing not in self._classes:
            self._classes[thing] = self._name_class(thing)
        return self._classes[thing]

    def pickle(self, thing: Any, label: str | None = None) -> bytes:
        """Raises TypeError, with its label, for what cannot be pickled."""
        self.clear_memo()
        self._into.seek(0)
        self._into.truncate()
        try:
            self.dump(thing)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise _unsendable(label or calls.brief(thing), error) from error
        return self._into.getvalue()


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: str) -> Any:
        return fetch(name)


class _Pickles:
    """What the runner has fetched: the latest used of it. Pickles of one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    def fetch(self, name: str) -> Any:
        """The pickle of this name; of a pack, the list of its pickles. Raises LookupError."""
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known
        pickled = _read(name.removesuffix("#"))
        found = cloudpickle.loads(pickled) if name.endswith("#") else pickled
        self._known[name] = found
        self._sizes[name] = len(pickled)
        self._bytes += len(pickled)
        while self._bytes > KEPT_BYTES and len(self._known) > 1:
            oldest, _ = self._known.popitem(last=False)
            self._bytes -= self._sizes.pop(oldest)
        return found


_pickles = _Pickles()


def cloudpickle_of(thing: Any) -> bytes:
    """Raises TypeError, naming it, for what cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise _unsendable(calls.brief(thing), error) from error
    return pickled


def fetch(name: str) -> Any:
    """The object of this name, on the runner's side. Raises LookupError, or what its unpickling raises."""
    if "#" in name:
        _, pack, place = name.split("#")
        return _unpickled(_pickles.fetch(f"{pack}#")[int(place)])
    return _fetch_code(name) if f"/{CODE}/" in name else _unpickled(_pickles.fetch(name))


@lru_cache(maxsize=KEPT)
def _fetch_code(name: str) -> Any:
    return _unpickled(_read(name))


def _read(name: str) -> bytes:
    pickled: bytes | None = internal_kv._internal_kv_get(name, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
    if pickled is None:
        raise LookupError(f"{name} is not in Ray's store any more: its driver has ended")
    return pickled


def _unpickled(pickled: bytes) -> Any:
    return _Unpickler(io.BytesIO(pickled)).load()


def _packs(pickles: Sequence[bytes]) -> Iterator[list[bytes]]:
    pack: list[bytes] = []
    size = 0
    for pickled in pickles:
        if pack and (len(pack) == PACKED or size + len(pickled) > PACKED_BYTES):
            yield pack
            pack, size = [], 0
        pack.append(pickled)
        size += len(pickled)
    if pack:
        yield pack


def _kind(thing: Any) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".replace("#", "")


def _is_code(thing: Any) -> bool:
    return isinstance(thing, type | FunctionType | BuiltinFunctionType)


def _is_of_script(kind: type) -> bool:
    """Whether it can't be imported elsewhere: cloudpickle would send all of it, each time."""
    return kind.__module__ == "__main__" and getattr(sys.modules["__main__"], kind.__qualname__, None) is kind


def _is_plain(value: Any, levels: int = values.DEEPEST) -> bool:
    """Whether it is None, bool, int of 64 bits, float, str, bytes, or lists and dicts (text keys) of such: what a
    message can hold, and its reader can take apart.
    """
    if value is None or type(value) in (bool, float, bytes):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**64
    if type(value) is str:
        return values.has_utf8(value)
    if type(value) is list:
        return levels > 0 and all(_is_plain(item, levels - 1) for item in value)
    if type(value) is not dict or not levels:
        return False
    return all(
        type(key) is str and values.has_utf8(key) and _is_plain(item, levels - 1)
        for key, item in value.items()
    )


def _unsendable(label: str, error: Exception) -> TypeError:
    return TypeError(f"{label} cannot be sent to a runner: {type(error).__name__}: {error}")

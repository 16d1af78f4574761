"""Callables and arguments that are not plain data: they are sent through Ray's own key-value store, pickled.

Rules:
1. Nothing is unpickled that came over a socket of ours: Ray guards its store with its token.
2. Each is pickled when it is named: later changes have no effect. Pickles are stored in packs, equal ones once, and
   deleted when all their references are released, the others when the driver closes.
3. A runner caches the latest used `CACHE_BYTES` of pickles, and builds a new object for each run: runs do not share
   objects. Only functions and classes are shared.
4. A class of the driver's script is sent once, not with each object: by value it is 5 kB and 0.2 ms.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from ray import cloudpickle
from ray.experimental import internal_kv

from governor.tasks.protocol import values
from governor.tasks.runner_process import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PREFIX: Final = "pickled:"
CODE: Final = "code"
DATA: Final = "data"
CACHED_CODE: Final = 256
"""Functions and classes that a runner caches."""
CACHE_BYTES: Final = 64 * 1024 * 1024
PACKED: Final = 1_000
PACKED_BYTES: Final = 256 * 1024
"""A runner that wants one object fetches its whole pack."""
NAMESPACE: Final = b"governor-tasks"


@dataclass(frozen=True, slots=True)
class NamedTasks:
    """Names of the callables and arguments of tasks that are submitted together, for `PickleStore.store` and `release`.

    `args` are plain ones, or none and the name under which a runner fetches them. `pickles` are to be stored, by name;
    `uses` counts the references to each of them.
    """

    calls: list[str]
    args: list[tuple[dict[str, Any], str]]
    pickles: dict[str, bytes]
    uses: Counter[str]


class PickleStore:
    """The driver's side. Thread-safe."""

    def __init__(self, namespace: str) -> None:
        self._references: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._prefix = f"{PREFIX}{namespace}/"

    def name_tasks(
        self, given: Sequence[Callable[..., Any] | str], args: Sequence[Mapping[str, Any]]
    ) -> NamedTasks:
        """Pickles the callables and arguments of tasks as they are now, and names them; stores nothing, does not call
        Ray. ``module:attribute`` and plain arguments stay as they are.

        Raises TypeError, naming the object, if one cannot be called or pickled.
        """
        packs = PackBuilder(self._prefix)
        known: dict[int, int] = {}
        """Positions of functions and classes, by identity; the caller holds references to them."""
        calls_at = [packs.add_call(call, known) for call in given]
        args_at = [
            None if _is_plain(plain) else packs.add(DATA, plain) for plain in (dict(each) for each in args)
        ]
        names = packs.close()
        return NamedTasks(
            [
                position if isinstance(position, str) else f"{PREFIX}{_kind(call)}{names[position]}"
                for position, call in zip(calls_at, given, strict=True)
            ],
            [
                (dict(each), "") if position is None else ({}, f"{PREFIX}{names[position]}")
                for position, each in zip(args_at, args, strict=True)
            ],
            packs.pickles,
            packs.uses,
        )

    def name_many(self, things: Sequence[Any], labels: Sequence[str]) -> list[str]:
        """Stores many callable objects and returns their names: a graph of 100,000 is stored in seconds. The part before
        the first ``#`` of a name is that of their class. Calls into Ray.

        Raises TypeError, with its label, if one cannot be called or pickled; no object is stored then.
        """
        packs = self.new_packs()
        for thing, label in zip(things, labels, strict=True):
            packs.add_object(thing, label)
        return self.store_packs([packs])

    def new_packs(self, classes: dict[type, tuple[str, bytes]] | None = None) -> PackBuilder:
        """For callable objects, until `store_packs`. `classes` of the script that were pickled already; more are added."""
        return PackBuilder(self._prefix, classes)

    def store_packs(self, several: Iterable[PackBuilder]) -> list[str]:
        """Stores the objects that were added, and returns their names, as `name_many`. Calls into Ray. After an error it may
        be called again.
        """
        packs = self.new_packs()
        for each in several:
            packs.add_all(each)
        names = packs.close()
        for name, pickled in packs.pickles.items():
            self.store(name, pickled, uses=packs.uses[name])
        return [f"{PREFIX}{kind}{name}" for kind, name in zip(packs.kinds, names, strict=True)]

    def store(self, name: str, pickled: bytes, *, uses: int) -> None:
        """Stores a pickle with `uses` references. Calls into Ray."""
        with self._lock:
            if name not in self._references:
                internal_kv._internal_kv_put(name, pickled, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
            self._references[name] += uses

    def release_names(self, names: Iterable[str]) -> None:
        """Releases one reference for each of these names of `name_many`. Calls into Ray."""
        self.release(Counter(name.split("#")[1] for name in names))

    def release(self, uses: Mapping[str, int]) -> None:
        """Releases so many references to each pickle; deletes those without any. Calls into Ray."""
        with self._lock:
            for name, number in uses.items():
                if name not in self._references:
                    continue
                self._references[name] -= number
                if self._references[name] <= 0:
                    del self._references[name]
                    internal_kv._internal_kv_del(name, namespace=NAMESPACE)  # noqa: SLF001  # as above

    def close(self) -> None:
        """Deletes all stored pickles. Ray must still be connected; if it is lost, so is the store."""
        with self._lock:
            stored, self._references = self._references, Counter()
        if not stored:
            return
        try:
            internal_kv._internal_kv_del(self._prefix, del_by_prefix=True, namespace=NAMESPACE)  # noqa: SLF001  # as above
        except Exception:  # noqa: BLE001  # Ray is gone, and the store with it
            return


class PackBuilder:
    """Collects pickles in packs, and names them: a pack's name is a hash of its contents."""

    def __init__(self, prefix: str, classes: dict[type, tuple[str, bytes]] | None = None) -> None:
        self._prefix = prefix
        self._classes = {} if classes is None else classes
        self._pickler = _Pickler(self._name_class)
        self._added: list[tuple[str, bytes]] = []
        self.kinds: list[str] = []
        """Of `add_object`."""
        self.pickles: dict[str, bytes] = {}
        self.uses: Counter[str] = Counter()

    def add(self, kind: str, thing: Any, label: str | None = None) -> int:
        """Adds an object; returns its position among the names. Raises TypeError."""
        pickled = self._pickler.pickle(thing, label) if kind == DATA else cloudpickle_of(thing)
        self._added.append((kind, pickled))
        return len(self._added) - 1

    def add_object(self, thing: Any, label: str) -> None:
        """Adds a callable object. Raises TypeError, with its label, and adds nothing then."""
        calls.require_callable(thing, label)
        self.add(DATA, thing, label)
        self.kinds.append(_kind(thing))

    def add_all(self, other: PackBuilder) -> None:
        """Adds the objects of another one, which is not closed."""
        self._added += other._added  # its own class
        self.kinds += other.kinds
        self.pickles |= other.pickles
        self.uses |= other.uses

    def add_call(self, call: Callable[..., Any] | str, known: dict[int, int]) -> int | str:
        """``module:attribute``, or the position of its name. Raises TypeError."""
        if isinstance(call, str):
            module, colon, attribute = call.partition(":")
            if not (module and colon and attribute):
                raise TypeError(f'"{call}" is not of the form module:attribute')
            return call
        if id(call) in known:
            return known[id(call)]
        calls.require_callable(call)
        if not isinstance(call, type | FunctionType | BuiltinFunctionType):
            return self.add(DATA, call)
        position = known[id(call)] = self.add(CODE, call)
        return position

    def close(self) -> list[str]:
        """Packs all added objects; returns their names in the order of their positions."""
        names: dict[int, str] = {}
        for kind in (CODE, DATA):
            of_kind = {at: pickled for at, (its_kind, pickled) in enumerate(self._added) if its_kind == kind}
            for pack in _packs(of_kind):
                name = self._store(kind, pickle.dumps([of_kind[position] for position in pack]))
                self.uses[name] += len(pack)
                names |= {position: f"#{name}#{number}" for number, position in enumerate(pack)}
        return [names[position] for position in range(len(names))]

    def _name_class(self, kind: type) -> str:
        if kind not in self._classes:
            pickled = cloudpickle_of(kind)
            self._classes[kind] = self._store(CODE, pickled), pickled
        name, self.pickles[name] = self._classes[kind]
        self.uses[name] = 1
        return name

    def _store(self, kind: str, pickled: bytes) -> str:
        name = f"{self._prefix}{kind}/{hashlib.sha256(pickled).hexdigest()}"
        self.pickles[name] = pickled
        return name


class _Pickler(cloudpickle.CloudPickler):
    """Pickles one object after the other; classes of the script are replaced by calls of `fetch`. (A `persistent_id` would be
    asked about every text and number.)
    """

    def __init__(self, name_class: Callable[[Any], str]) -> None:
        self._into = io.BytesIO()
        super().__init__(self._into)  # type: ignore[no-untyped-call]
        self._name_class = name_class
        self._classes: dict[type, str] = {}
        self._importable: set[type] = set()
        self._plain: set[type] = set()
        """Types of objects for which cloudpickle has no way of its own."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) in self._plain or (isinstance(thing, type) and thing in self._importable):
            return NotImplemented
        if isinstance(thing, type) and _is_of_script(thing):
            if thing not in self._classes:
                self._classes[thing] = self._name_class(thing)
            return fetch, (self._classes[thing],)
        reduced = super().reducer_override(thing)  # type: ignore[no-untyped-call]
        if reduced is NotImplemented and isinstance(thing, type):
            self._importable.add(thing)
        elif reduced is NotImplemented:
            self._plain.add(type(thing))
        return reduced

    def pickle(self, thing: Any, label: str | None = None) -> bytes:
        """Raises TypeError, with its label, for an object that cannot be pickled."""
        self.clear_memo()
        self._into.seek(0)
        self._into.truncate()
        try:
            self.dump(thing)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise _unsendable(label or calls.brief(thing), error) from error
        return self._into.getvalue()


class _PickleCache:
    """The latest used pickles that the runner has fetched. Not thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def fetch(self, name: str) -> Any:
        """The pickle of this name; of a pack, the list of its pickles. Raises LookupError."""
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name][0]
        pickled = _read(name.removesuffix("#"))
        found = cloudpickle.loads(pickled) if name.endswith("#") else pickled
        self._known[name] = found, len(pickled)
        self._bytes += len(pickled)
        while self._bytes > CACHE_BYTES and len(self._known) > 1:
            _, (_, size) = self._known.popitem(last=False)
            self._bytes -= size
        return found

    def clear(self) -> None:
        self._known.clear()
        self._bytes = 0


_pickles = _PickleCache()


def cloudpickle_of(thing: Any) -> bytes:
    """Raises TypeError, naming the object, if it cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise _unsendable(calls.brief(thing), error) from error
    return pickled


def fetch(name: str) -> Any:
    """The object with this name, on the runner's side. Raises LookupError, or any error of its unpickling."""
    return _fetch_code(name) if f"/{CODE}/" in name else _fetch_data(name)


def _fetch_data(name: str) -> Any:
    if "#" not in name:
        return _unpickled(_pickles.fetch(name))
    _, pack, position = name.split("#")
    return _unpickled(_pickles.fetch(f"{pack}#")[int(position)])


_fetch_code = lru_cache(maxsize=CACHED_CODE)(_fetch_data)


def forget() -> None:
    """Empties the runner's caches: its driver has ended, and names of the next one are others."""
    _pickles.clear()
    _fetch_code.cache_clear()


def _read(name: str) -> bytes:
    pickled: bytes | None = internal_kv._internal_kv_get(name, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
    if pickled is None:
        raise LookupError(f"{name} is not in Ray's store any more: its driver has ended")
    return pickled


def _unpickled(pickled: bytes) -> Any:
    return pickle.loads(pickled)  # noqa: S301  # rule 1


def _packs(pickles: Mapping[int, bytes]) -> Iterator[list[int]]:
    """The positions of each pack."""
    pack: list[int] = []
    size = 0
    for position, pickled in pickles.items():
        if pack and (len(pack) == PACKED or size + len(pickled) > PACKED_BYTES):
            yield pack
            pack, size = [], 0
        pack.append(position)
        size += len(pickled)
    if pack:
        yield pack


def _kind(thing: Any) -> str:
    """A name that is the same for all functions of one source line, or all objects of one class."""
    if isinstance(thing, FunctionType):
        return f"{thing.__module__}.{thing.__qualname__}:{thing.__code__.co_firstlineno}".replace("#", "")
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".replace("#", "")


def _is_of_script(kind: type) -> bool:
    """Whether it can't be imported elsewhere: cloudpickle would send the whole class each time."""
    return kind.__module__ == "__main__" and getattr(sys.modules["__main__"], kind.__qualname__, None) is kind


def _is_plain(value: Any, levels: int = values.DEEPEST) -> bool:
    """Whether it is None, bool, int of 64 bits, float, str, bytes, or lists and dicts (str keys) of such: what a
    message can hold, and its reader can decode.
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

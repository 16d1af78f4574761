"""Callables and arguments that are not plain data, in the driver: they are handed over pickled, in files to runners of this
machine, through Ray's own key-value store to others.

Rules:
1. Each is pickled when it is named: later changes have no effect. Pickles are stored in packs, equal ones once, and
   deleted when all their references are released, the others when the driver closes.
2. A class of the driver's script is sent once, not with each object: by value it is 5 kB and 0.2 ms.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from ray import cloudpickle
from ray.experimental import internal_kv

from governor.tasks.protocol import values
from governor.tasks.runner_process import calls
from governor.tasks.runner_process.pickled import CODE, NAMESPACE, PREFIX, fetch, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

DATA: Final = "data"
PACKED: Final = 1_000
PACKED_BYTES: Final = 256 * 1024
"""A runner that wants one object reads its whole pack."""
_PROTOCOL: Final = 5
_WAYS_OF_OBJECT: Final = ("__reduce_ex__", "__reduce__", "__getstate__")
_OWN_WAYS: Final = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")
_plain: type = type("", (), {})
_PLAIN: Final = (type, _plain.__basicsize__, _plain.__dictoffset__)


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
    """The driver's side. Thread-safe. `folder` is `FOLDER` beside its socket."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self._references: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._prefix = f"{PREFIX}{namespace}/"
        self._folder = folder
        self._is_published = False
        """Whether the pickles are in Ray's store too."""

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
        the first ``#`` of a name is that of their class.

        Raises TypeError, with its label, if one cannot be called or pickled; no object is stored then. Raises as `store`.
        """
        packs = self.new_packs()
        for thing, label in zip(things, labels, strict=True):
            packs.add_object(thing, label)
        return self.store_packs([packs])

    def new_packs(self, classes: dict[type, tuple[str, bytes]] | None = None) -> PackBuilder:
        """For callable objects, until `store_packs`. `classes` of the script that were pickled already; more are added."""
        return PackBuilder(self._prefix, classes)

    def store_packs(self, several: Iterable[PackBuilder]) -> list[str]:
        """Stores the objects that were added, and returns their names, as `name_many`. After an error it may be called again."""
        packs = self.new_packs()
        for each in several:
            packs.add_all(each)
        names = packs.close()
        for name, pickled in packs.pickles.items():
            self.store(name, pickled, uses=packs.uses[name])
        return [f"{PREFIX}{kind}{name}" for kind, name in zip(packs.kinds, names, strict=True)]

    def store(self, name: str, pickled: bytes, *, uses: int) -> None:
        """Stores a pickle with `uses` references. Raises OSError if there is no room for it. Calls into Ray if the
        pickles are published.
        """
        with self._lock:
            if name not in self._references:
                path = path_of(self._folder, name)
                try:
                    path.write_bytes(pickled)
                except OSError:
                    path.unlink(missing_ok=True)
                    raise
                if self._is_published:
                    internal_kv._internal_kv_put(name, pickled, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
            self._references[name] += uses

    def publish(self) -> None:
        """Puts what is stored, now and later, into Ray's store too: there is a runner on another machine. Calls into Ray.
        Idempotent.
        """
        with self._lock:
            if not self._is_published:
                for name in self._references:
                    pickled = path_of(self._folder, name).read_bytes()
                    internal_kv._internal_kv_put(name, pickled, namespace=NAMESPACE)  # noqa: SLF001  # as above
                self._is_published = True

    def release_names(self, names: Iterable[str]) -> None:
        """Releases one reference for each of these names of `name_many`. Calls into Ray if the pickles are published."""
        self.release(Counter(name.split("#")[1] for name in names))

    def release(self, uses: Mapping[str, int]) -> None:
        """Releases so many references to each pickle; deletes those without any. Calls into Ray if they are published."""
        with self._lock:
            for name, number in uses.items():
                if name not in self._references:
                    continue
                self._references[name] -= number
                if self._references[name] <= 0:
                    del self._references[name]
                    path_of(self._folder, name).unlink(missing_ok=True)
                    if self._is_published:
                        internal_kv._internal_kv_del(name, namespace=NAMESPACE)  # noqa: SLF001  # as above

    def close(self) -> None:
        """Deletes all pickles in Ray's store; the folder is the caller's. Ray must still be connected; if it is lost, so is
        the store.
        """
        if not self._is_published:
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
        self._known_kinds: dict[type, str] = {}
        """Of objects that can be run by a method of their class."""
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
        kind = self._known_kinds.get(type(thing))
        if kind is None or "run" in thing.__dict__:
            calls.require_callable(thing, label)
            kind = _kind(thing)
            if calls.runs_by_class(thing):
                self._known_kinds[type(thing)] = kind
        self._added.append((DATA, self._pickler.pickle(thing, label)))
        self.kinds.append(kind)

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
        self._starts: dict[type, tuple[bytes, bytes] | None] = {}
        """By the classes of all objects so far, with the name of the class; None: of one."""

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
        elif reduced is NotImplemented and not isinstance(
            thing, FunctionType
        ):  # the next one may be a lambda
            self._plain.add(type(thing))
        return reduced

    def pickle(self, thing: Any, label: str | None = None) -> bytes:
        """Raises TypeError, with its label, for an object that cannot be pickled."""
        kind = type(thing)
        if kind not in self._starts:
            self._starts[kind] = None
        elif (start := self._starts[kind]) is None:
            self._starts[kind] = self._start_of(kind), kind.__qualname__.encode()
        elif start[0] and (pickled := _by_state(thing, *start)) is not None:
            return pickled
        return self._pickle(thing, label)

    def _pickle(self, thing: Any, label: str | None) -> bytes:
        self.clear_memo()
        self._into.seek(0)
        self._into.truncate()
        try:
            self.dump(thing)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise _unsendable(label or calls.brief(thing), error) from error
        return self._into.getvalue()

    def _start_of(self, kind: type) -> bytes:
        """What the pickles of all objects of this class begin with: an object without attributes. Empty if a class has a way of
        its own to be pickled.
        """
        if (
            any(getattr(kind, name) is not getattr(object, name) for name in _WAYS_OF_OBJECT)
            or any(hasattr(kind, name) for name in _OWN_WAYS)
            or (type(kind), kind.__basicsize__, kind.__dictoffset__) != _PLAIN  # slots, or a builtin below it
            or kind in self.dispatch_table
            or cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
        ):
            return b""
        made = pickletools.optimize(self._pickle(kind, None))
        if any(op.name == "MEMOIZE" or "PUT" in op.name for op, *_ in pickletools.genops(made)):
            return b""  # numbers of what is remembered would be those of the attributes
        return made[:-1] + pickle.EMPTY_TUPLE + pickle.NEWOBJ


def _by_state(thing: Any, start: bytes, name: bytes) -> bytes | None:
    """The start, and the attributes as the standard library pickles them: in a quarter of the time. None where that may not be
    the same: classes of the script, and references to the object itself.
    """
    try:
        state = pickle.dumps(thing.__dict__, _PROTOCOL)
    except Exception:  # noqa: BLE001  # cloudpickle knows more
        return None
    if b"_main__" in state or name in state:
        return None
    return start + state[:-1] + pickle.BUILD + pickle.STOP


def cloudpickle_of(thing: Any) -> bytes:
    """Raises TypeError, naming the object, if it cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise _unsendable(calls.brief(thing), error) from error
    return pickled


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

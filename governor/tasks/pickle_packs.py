"""Pickles of callables and arguments, in packs that are named after their contents; `pickle_store` stores them.

A class of the driver's script is pickled once, not with each object: by value it is 5 kB and 0.2 ms.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import sys
from collections import Counter
from itertools import groupby
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from ray import cloudpickle

from governor.tasks.runner_process import calls
from governor.tasks.runner_process.pickled import CODE, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DATA: Final = "data"
PACKED: Final = 1_000
PACKED_BYTES: Final = 256 * 1024
"""A runner that wants one object reads its whole pack."""
_PROTOCOL: Final = 5
_WAYS_OF_OBJECT: Final = ("__reduce_ex__", "__reduce__", "__getstate__")
_OWN_WAYS: Final = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")
_END: Final = pickle.BUILD + pickle.STOP
_plain: type = type("", (), {})
_PLAIN: Final = (type, _plain.__basicsize__, _plain.__dictoffset__)


class PackBuilder:
    """Collects pickles in packs, and names them: a pack's name is a hash of its contents."""

    def __init__(self, prefix: str, classes: dict[type, tuple[str, bytes]] | None = None) -> None:
        self._prefix = prefix
        self._classes = {} if classes is None else classes
        self._pickler = _Pickler(self._name_class)
        self._added: dict[str, dict[int, bytes]] = {CODE: {}, DATA: {}}
        """By position."""
        self._number = 0
        self._known_kinds: dict[type, str] = {}
        """Of objects that can be run by a method of their class."""
        self.kinds: list[str] = []
        """Of `add_object`."""
        self.pickles: dict[str, bytes] = {}
        self.uses: Counter[str] = Counter()

    def add(self, kind: str, thing: Any, label: str | None = None) -> int:
        """Adds an object; returns its position among the names. Raises TypeError."""
        pickled = self._pickler.pickle(thing, label) if kind == DATA else cloudpickle_of(thing)
        self._added[kind][self._number] = pickled
        self._number += 1
        return self._number - 1

    def add_object(self, thing: Any, label: str) -> None:
        """Adds a callable object. Raises TypeError, with its label, and adds nothing then."""
        kind = self._known_kinds.get(type(thing))
        if kind is None or "run" in thing.__dict__:
            calls.require_callable(thing, label)
            kind = kind_of(thing)
            if calls.runs_by_class(thing):
                self._known_kinds[type(thing)] = kind
        self._added[DATA][self._number] = self._pickler.pickle(thing, label)
        self._number += 1
        self.kinds.append(kind)

    def add_objects(self, things: Sequence[Any], labels: Sequence[str]) -> None:
        """As `add_object`, for each."""
        at = 0
        for kind, group in groupby(things, type):
            of_kind = list(group)
            at += len(of_kind)
            self._add_objects(kind, of_kind, labels[at - len(of_kind) : at])

    def _add_objects(self, kind: type, things: list[Any], labels: Sequence[str]) -> None:
        """Objects of one class."""
        self.add_object(things[0], labels[0])
        others, name = things[1:], self._known_kinds.get(kind)
        pickles = None
        if name is not None and not any("run" in thing.__dict__ for thing in others):
            pickles = self._pickler.pickle_by_state(kind, others)
        if name is None or pickles is None:
            for thing, label in zip(others, labels[1:], strict=True):
                self.add_object(thing, label)
            return
        self._added[DATA].update(enumerate(pickles, self._number))
        self._number += len(pickles)
        self.kinds += [name] * len(pickles)

    def add_all(self, other: PackBuilder) -> None:
        """Adds the objects of another one, which is not closed."""
        for kind, pickles in other._added.items():  # its own class
            self._added[kind] |= {self._number + position: pickled for position, pickled in pickles.items()}
        self._number += other._number
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
        names = [""] * self._number
        for kind, pickles in self._added.items():
            for pack in _packs(pickles):
                name = self._store(kind, pickle.dumps([pickles[position] for position in pack]))
                self.uses[name] += len(pack)
                for number, position in enumerate(pack):
                    names[position] = f"#{name}#{number}"
        return names

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
        self._starts: dict[type, bytes | None] = {}
        """By the classes of all objects so far; None: of one."""

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
        by_state = self.pickle_by_state(type(thing), [thing])
        return by_state[0] if by_state else self._pickle(thing, label)

    def pickle_by_state(self, kind: type, things: Sequence[Any]) -> list[bytes] | None:
        """Objects of one class, each by its attributes, as the standard library pickles them: in a quarter of the time. None
        where that may not be the same: classes of the script, and references to the object itself; and for the first one.
        """
        if kind not in self._starts and len(things) == 1:
            self._starts[kind] = None
            return None
        start = self._starts.get(kind)
        if start is None:
            start = self._starts[kind] = self._start_of(kind)
        if not start:
            return None
        try:
            states = [pickle.dumps(thing.__dict__, _PROTOCOL) for thing in things]
        except Exception:  # noqa: BLE001  # cloudpickle knows more
            return None
        together = b"".join(
            states
        )  # one search instead of two for each, which would cost more than the pickles
        if b"_main__" in together or kind.__qualname__.encode() in together:
            return None
        return [start + state[:-1] + _END for state in states]

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


def kind_of(thing: Any) -> str:
    """A name that is the same for all functions of one source line, or all objects of one class."""
    if isinstance(thing, FunctionType):
        return f"{thing.__module__}.{thing.__qualname__}:{thing.__code__.co_firstlineno}".replace("#", "")
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".replace("#", "")


def _is_of_script(kind: type) -> bool:
    """Whether it can't be imported elsewhere: cloudpickle would send the whole class each time."""
    return kind.__module__ == "__main__" and getattr(sys.modules["__main__"], kind.__qualname__, None) is kind


def _unsendable(label: str, error: Exception) -> TypeError:
    return TypeError(f"{label} cannot be sent to a runner: {type(error).__name__}: {error}")

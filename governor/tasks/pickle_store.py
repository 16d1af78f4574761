"""Callables and arguments that are not plain data, in the driver: they are handed over pickled, in files to runners of this
machine, through Ray's own key-value store to others.

Each is pickled when it is named: later changes have no effect. Pickles are stored in packs (`pickle_packs`), equal ones once, and
deleted when all their references are released, the others when the driver closes.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.experimental import internal_kv

from governor.tasks.pickle_packs import DATA, PackBuilder, kind_of
from governor.tasks.protocol import values
from governor.tasks.runner_process.pickled import NAMESPACE, PREFIX, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


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
                position if isinstance(position, str) else f"{PREFIX}{kind_of(call)}{names[position]}"
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
        packs.add_objects(things, labels)
        return self._store_closed(packs)

    def new_packs(self, classes: dict[type, tuple[str, bytes]] | None = None) -> PackBuilder:
        """For callable objects, until `store_packs`. `classes` of the script that were pickled already; more are added."""
        return PackBuilder(self._prefix, classes)

    def store_packs(self, several: Iterable[PackBuilder]) -> list[str]:
        """Stores the objects that were added, and returns their names, as `name_many`. After an error it may be called again."""
        packs = self.new_packs()
        for each in several:
            packs.add_all(each)
        return self._store_closed(packs)

    def _store_closed(self, packs: PackBuilder) -> list[str]:
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

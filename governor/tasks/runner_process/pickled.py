"""Callables and arguments that are not plain data, in the runner: what `governor.tasks.pickle_store` has stored.

Rules:
1. Nothing is unpickled that came over a socket of ours: the files lie in the driver's own folder, and Ray guards its store
   with its token.
2. A runner caches the latest used `CACHE_BYTES` of pickles, and builds a new object for each run: runs do not share
   objects. Only functions and classes are shared.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ray import cloudpickle
from ray.experimental import internal_kv

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = "pickled:"
CODE: Final = "code"
CACHED_CODE: Final = 256
"""Functions and classes that a runner caches."""
CACHE_BYTES: Final = 64 * 1024 * 1024
NAMESPACE: Final = b"governor-tasks"
"""In Ray's key-value store."""
_IS_CODE: Final = f"/{CODE}/"
FOLDER: Final = "pickles"
"""Beside the socket of the driver."""


class _PickleCache:
    """The latest used pickles that the runner has fetched. Not thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._last: tuple[str, Any] = "", None
        """The pack that was fetched last, and its name."""

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

    def fetch_pack(self, name: str) -> Any:
        """The pickles of this pack. Many tasks in a row are of one."""
        if name != self._last[0]:
            self._last = name, self.fetch(f"{name}#")
        return self._last[1]

    def clear(self) -> None:
        self._known.clear()
        self._bytes = 0
        self._last = "", None


_pickles = _PickleCache()


def fetch(name: str) -> Any:
    """The object with this name, on the runner's side. Raises LookupError, or any error of its unpickling."""
    return _fetch_code(name) if _IS_CODE in name else _fetch_data(name)


def _fetch_data(name: str) -> Any:
    if "#" not in name:
        return _unpickled(_pickles.fetch(name))
    _, pack, position = name.split("#")
    return _unpickled(_pickles.fetch_pack(pack)[int(position)])


_fetch_code = lru_cache(maxsize=CACHED_CODE)(_fetch_data)
_folder_of_driver: Path | None = None


def serve(folder: Path | None) -> None:
    """For the runner: another driver begins, with files in this folder, None: on another machine. Empties the caches: names of
    another driver are others.
    """
    global _folder_of_driver  # noqa: PLW0603  # `fetch` stands in the pickles
    _folder_of_driver = folder
    _pickles.clear()
    _fetch_code.cache_clear()


def _read(name: str) -> bytes:
    if _folder_of_driver is not None:
        try:
            return path_of(_folder_of_driver, name).read_bytes()
        except FileNotFoundError:
            raise LookupError(f"{name} is not there any more: its driver has ended") from None
    pickled: bytes | None = internal_kv._internal_kv_get(name, namespace=NAMESPACE)  # noqa: SLF001  # its only interface
    if pickled is None:
        raise LookupError(f"{name} is not in Ray's store any more: its driver has ended")
    return pickled


def path_of(folder: Path, name: str) -> Path:
    return folder / name.removeprefix(PREFIX).replace("/", "-")


def _unpickled(pickled: bytes) -> Any:
    return pickle.loads(pickled)  # noqa: S301  # rule 1

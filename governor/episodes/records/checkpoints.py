"""Checkpoints: ``<run folder>/checkpoints/<phase>/<agent>.<episodes>.state``, ``.best`` and ``.last``, and their index.

Rules:
1. They are taken between two stages of a phase (`evaluation`): no episode runs, and the next ones wait for them. The
   agent is asked where it lives (`Copy`); it writes the file as it writes its own state: whole, synced, then named.
2. ``index.json`` says what there is, with episodes, metric and time. It is written after the files, and before those that
   are too old go: what it names is there.
3. `due` asked twice gives what is missing: a later life takes the checkpoint that an earlier one did not come to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote

import msgspec

from governor import clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from governor.messages import Checkpoint

    Copy: TypeAlias = Callable[[str, Path], Awaitable[None]]
    """Puts the state of an agent, by its name, at a path. Raises ConductorError with one line."""

COPY_SECONDS: Final = 60.0
SAFE: Final = " !#$&()+,;=@[]^{}~"
INDEX: Final = "index.json"
BEST: Final = "best"
LAST: Final = "last"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """`episodes`: so many of the phase had ended for training. `files` are by agent; `at` is wall-clock time."""

    episodes: int
    at: float
    files: dict[str, str]
    metric: float | None = None


class Index(msgspec.Struct, kw_only=True):
    every: list[Entry] = []
    best: Entry | None = None
    last: Entry | None = None


def folder_of(run_folder: Path, phase: str) -> Path:
    return run_folder / "checkpoints" / quote(phase, safe=SAFE)


class Checkpoints:
    """Those of one phase. `copy` is how its transport reaches the agents."""

    def __init__(self, wanted: Checkpoint, *, folder: Path, agents: Sequence[str], copy: Copy) -> None:
        self._wanted = wanted
        self._folder = folder
        self._agents = agents
        self._copy = copy
        self._index = _read(folder / INDEX)

    async def every(self, episodes: int, *, metric: float | None) -> None:
        """Raises ConductorError, OSError, as all of these."""
        index = self._index
        if any(entry.episodes == episodes for entry in index.every):
            return
        index.every.append(await self._take(str(episodes), episodes, metric))
        surplus = len(index.every) - self._wanted.keep if self._wanted.keep is not None else 0
        old, index.every = index.every[: max(surplus, 0)], index.every[max(surplus, 0) :]
        self._write()
        for entry in old:
            for name in entry.files.values():
                (self._folder / name).unlink(missing_ok=True)

    async def best(self, episodes: int, *, metric: float | None, sign: float) -> None:
        """Where it is better than the best one so far; `sign` is -1 where less is better."""
        before = self._index.best
        if not self._wanted.best or metric is None:
            return
        if before is None or before.metric is None or sign * metric > sign * before.metric:
            self._index.best = await self._take(BEST, episodes, metric)
            self._write()

    async def last(self, episodes: int) -> None:
        """Of a phase in which so many `episodes` have ended for training."""
        before = self._index.last
        if self._wanted.last and episodes and (before is None or before.episodes != episodes):
            self._index.last = await self._take(LAST, episodes, None)
            self._write()

    async def _take(self, label: str, episodes: int, metric: float | None) -> Entry:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = {name: f"{name}.{label}.state" for name in self._agents}
        for name, file in files.items():
            await self._copy(name, self._folder / file)
        return Entry(episodes=episodes, at=clock.wall(), metric=metric, files=files)

    def _write(self) -> None:
        beside = self._folder / f"{INDEX}.new"
        with beside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._index), indent=2))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._folder / INDEX)


def _read(path: Path) -> Index:
    """An index that cannot be read is as good as none: the files stay."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Index)
    except (OSError, msgspec.MsgspecError):
        return Index()

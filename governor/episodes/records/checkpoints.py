"""Checkpoints: ``<run folder>/checkpoints/<phase>/<agent>.<episodes>.state``, ``.best`` and ``.last``, and their index.

Rules:
1. They are taken between two stages of a phase (`evaluation`): no episode runs, and the next ones wait. The agent's
   process (`Copy`) writes the file as it writes its saved state: complete, synced, then renamed.
2. ``index.json`` lists them, with episodes, metric and time. First the states of all agents are written under temporary
   names, then the index, as ``index.json.new``: from then on the checkpoint is valid, and the states are renamed, if
   necessary by a later process. Surplus checkpoints are removed after that. A failure leaves the earlier ones.
3. An existing checkpoint is not taken again: a later process takes the one that an earlier process did not finish.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from governor import clock, files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from governor.messages import Checkpoint

    Copy: TypeAlias = Callable[[str, Path], Awaitable[None]]
    """Copies the state of an agent, by its name, to a path. Raises ConductorError with one line."""

COPY_SECONDS: Final = 60.0
INDEX: Final = "index.json"
DECIDED: Final = "index.json.new"
BEST: Final = "best"
LAST: Final = "last"


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """`episodes`: so many training episodes of the phase had ended. `files` are by agent; `at` is in seconds of wall-clock time."""

    episodes: int
    at: float
    files: dict[str, str]
    metric: float | None = None


class Index(msgspec.Struct, frozen=True, kw_only=True):
    every: tuple[CheckpointEntry, ...] = ()
    best: CheckpointEntry | None = None
    last: CheckpointEntry | None = None


def folder_of(run_folder: Path, phase: str) -> Path:
    return run_folder / "checkpoints" / files.name_of(phase)


class Checkpoints:
    """The checkpoints of one phase. `copy` copies the state of an agent."""

    def __init__(self, wanted: Checkpoint, *, folder: Path, agents: Sequence[str], copy: Copy) -> None:
        self._wanted = wanted
        self._folder = folder
        self._agents = agents
        self._copy = copy

    async def every(self, episodes: int, *, metric: float | None) -> None:
        """Takes a numbered checkpoint and removes the surplus. Raises ConductorError and OSError, as the other two."""
        index = self._known()
        if any(entry.episodes == episodes for entry in index.every):
            return
        entry = await self._take(str(episodes), episodes, metric)
        every = (*index.every, entry)
        surplus = max(len(every) - self._wanted.keep, 0) if self._wanted.keep is not None else 0
        self._put(entry, msgspec.structs.replace(index, every=every[surplus:]))
        for old in every[:surplus]:
            for name in old.files.values():
                (self._folder / name).unlink(missing_ok=True)

    async def best(self, episodes: int, *, metric: float | None, sign: float) -> None:
        """Takes the best checkpoint if `metric` is better than before; `sign` is -1 if less is better."""
        index = self._known()
        before = index.best
        if not self._wanted.best or metric is None:
            return
        if before is None or before.metric is None or sign * metric > sign * before.metric:
            entry = await self._take(BEST, episodes, metric)
            self._put(entry, msgspec.structs.replace(index, best=entry))

    async def last(self, episodes: int) -> None:
        """Takes the last checkpoint of a phase in which so many training `episodes` have ended."""
        index = self._known()
        before = index.last
        if self._wanted.last and episodes and (before is None or before.episodes != episodes):
            entry = await self._take(LAST, episodes, None)
            self._put(entry, msgspec.structs.replace(index, last=entry))

    async def _take(self, label: str, episodes: int, metric: float | None) -> CheckpointEntry:
        """Writes the states under temporary names."""
        entry = CheckpointEntry(
            episodes=episodes,
            at=clock.wall(),
            metric=metric,
            files={name: f"{name}.{label}.state" for name in self._agents},
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for name, file in entry.files.items():
                await self._copy(name, self._taken(file, entry))
        except BaseException:
            self._discard(entry)
            raise
        return entry

    def _taken(self, file: str, entry: CheckpointEntry) -> Path:
        """The temporary name; it has `episodes`, so that a late write of an abandoned agent belongs to no other checkpoint."""
        return self._folder / f"{file}.{entry.episodes}.new"

    def _discard(self, entry: CheckpointEntry) -> None:
        for file in entry.files.values():
            self._taken(file, entry).unlink(missing_ok=True)

    def _put(self, entry: CheckpointEntry, index: Index) -> None:
        """Makes the checkpoint valid; `index` lists it."""
        content = msgspec.json.format(msgspec.json.encode(index), indent=2)
        try:
            files.write_whole(self._folder / DECIDED, content)
        except OSError:
            self._discard(entry)
            raise
        self._finish()

    def _known(self) -> Index:
        if (self._folder / DECIDED).exists():
            self._finish()
        return _read(self._folder / INDEX)

    def _finish(self) -> None:
        """Renames the states of a valid checkpoint."""
        index = _read(self._folder / DECIDED)
        for entry in filter(None, (*index.every, index.best, index.last)):
            for file in entry.files.values():
                with contextlib.suppress(FileNotFoundError):  # it is renamed already
                    self._taken(file, entry).replace(self._folder / file)
        (self._folder / DECIDED).replace(self._folder / INDEX)
        files.sync_to_disk(self._folder)


def _read(path: Path) -> Index:
    """An unreadable index counts as empty: the files stay."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Index)
    except (OSError, msgspec.MsgspecError):
        return Index()

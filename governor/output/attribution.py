"""What a thread, or an asyncio task, is doing: the episode or the attempt of a task that its output belongs to.

Rules:
1. Python's own output bears the fields of its thread. A thread of user code that has none bears those of the process.
2. Raw bytes (C code, subprocesses) belong to what the process does, if that is one thing: while two are under way they belong
   to neither.
3. `begin` costs no write where nothing was printed: what the process does now, and from which offset of its spools on, is in
   a page that is shared with the collector (``.now``). Before it is replaced, a mark in each spool that got raw bytes meanwhile
   says the same for good.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from governor.output import spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PAGE_BYTES: Final = 4096
READER_BYTES: Final = 16
"""At its end, for the collector."""
_HEAD: Final = struct.Struct("<II")
"""Length and CRC of what follows the episode: the offset of each spool, and a fragment."""
_BEGINNING: Final = struct.Struct("<IIq")
"""Head and episode."""
_EPISODE: Final = struct.Struct("=q")
"""Negative: none. Written alone, in one piece, where nothing else changes."""
_SINCE: Final = struct.Struct("<QQ")
_ROOM: Final = PAGE_BYTES - _HEAD.size - _EPISODE.size - READER_BYTES


class Attribution:
    """One for each thread or asyncio task that plays episodes or runs tasks. `describe` gives the fields of Python's output where
    they change too often for `begin`: with each step of a vector.
    """

    def __init__(self, describe: Callable[[], Mapping[str, str | float]] | None = None) -> None:
        self.begun = b""
        """A fragment: all but the episode."""
        self.episode = -1
        self._given: dict[str, str | float] = {}
        self._describe = describe

    @property
    def fields(self) -> bytes:
        """A fragment, for what the thread prints now."""
        if self._describe is not None:
            return spool.fragment(**self._describe())
        return _with_episode(self.begun, self.episode)

    def bind(self) -> None:
        """What the calling thread (or asyncio task) prints is described by this."""
        _thread.set(self)

    def begin(self, *, episode: int = -1, **fields: str | float) -> None:
        """As `bind`; and raw bytes of the process belong to `fields` from now on. An `episode` after another costs least.

        Keys: `phase`, `episode`, `evaluation`; `task`, `run`, `attempt`.
        """
        if _process is not None:
            if _thread.get() is not self:
                _thread.set(self)
            self.begin_raw(episode=episode, **fields)

    def begin_as(self, fragment: bytes) -> None:
        """As `begin`, with fields that are a fragment already: tasks of a few microseconds begin by it."""
        if _process is not None:
            if _thread.get() is not self:
                _thread.set(self)
            self._given, self.begun, self.episode = {"fragment": ""}, fragment, -1
            _process.begin(self)

    def begin_raw(self, *, episode: int = -1, **fields: str | float) -> None:
        """Raw bytes of the process belong to `fields` from now on; what threads print belongs to what it did before."""
        if _process is not None:
            if fields != self._given:
                self._given, self.begun = fields, spool.fragment(**fields)
            self.episode = episode
            _process.begin(self)

    def end(self) -> None:
        """What follows belongs to nothing in particular."""
        if _process is not None:
            self._given, self.begun, self.episode = {}, b"", -1
            _process.end(self)


def episode_fields(phase: str, episode: int, evaluation: int) -> dict[str, Any]:
    """Those of an episode, for `Attribution.begin`. `evaluation`: its number, from 1; 0 for none."""
    fields: dict[str, Any] = {"phase": phase, "episode": episode}
    if evaluation:
        fields["evaluation"] = evaluation
    return fields


@contextmanager
def attributed(**fields: Any) -> Iterator[None]:
    """As `Attribution.begin`, for what is done within."""
    one = Attribution()
    one.begin(**fields)
    try:
        yield
    finally:
        one.end()


class ProcessAttribution:
    """What this process does; None where its output is not captured."""

    def __init__(self, descriptors: tuple[int, int], page: Path | None) -> None:
        self.tagged = [0, 0]
        """Bytes that this process has written as records, to each spool: the others are raw."""
        self._fields, self._episode = b"", -1
        self._lock = threading.Lock()
        self._spools = descriptors
        self._active: dict[Attribution, None] = {}
        self._alone: Attribution | None = None
        self._since = (0, 0)
        self._page: mmap.mmap | None = None
        if page is not None:
            with page.open("x+b") as file:
                os.posix_fallocate(
                    file.fileno(), 0, PAGE_BYTES
                )  # on a full disk a write to a hole were a SIGBUS
                self._page = mmap.mmap(file.fileno(), PAGE_BYTES)
            self._show()

    @property
    def fields(self) -> bytes:
        """A fragment, for what a thread of user code prints."""
        return _with_episode(self._fields, self._episode)

    def begin(self, one: Attribution) -> None:
        if self._alone is one and one.begun is self._fields and self._page is not None:
            out, err = self._spools
            if (spool.size(out), spool.size(err)) == self._since:
                self._episode = one.episode
                _EPISODE.pack_into(self._page, _HEAD.size, one.episode)
                if self._alone is one:
                    return
        with self._lock:
            if self._alone is one and self._page is not None:
                out, err = self._spools
                if (spool.size(out), spool.size(err)) == self._since:
                    self._fields, self._episode = one.begun, one.episode
                    self._show()
                    return
            self._active[one] = None
            self._switch()

    def end(self, one: Attribution) -> None:
        with self._lock:
            self._active.pop(one, None)
            self._switch()

    def _switch(self) -> None:
        one = self._alone = next(iter(self._active)) if len(self._active) == 1 else None
        fields, episode = (one.begun, one.episode) if one is not None else (b"", -1)
        if (fields, episode) == (self._fields, self._episode):
            self._fields = fields
            return
        out, err = self._spools
        sizes = (spool.size(out), spool.size(err))
        before = self._fields, self._episode
        self._fields, self._episode = fields, episode
        if self._page is None or sizes != self._since:
            old = _with_episode(*before)
            tagged, self.tagged = self.tagged, [0, 0]
            for index in (0, 1):
                if sizes[index] - self._since[index] != tagged[index]:
                    self._write(index, spool.mark(old, self._since[index]))
                if self._page is None:
                    self._write(index, spool.mark(self.fields))
            self._since = sizes
        self._show()

    def _show(self) -> None:
        if self._page is not None:
            out, err = self._since
            body = (_SINCE.pack(out, err) + self._fields)[:_ROOM]
            data = _BEGINNING.pack(len(body), zlib.crc32(body), self._episode) + body
            self._page[: len(data)] = data

    def _write(self, index: int, data: bytes) -> None:
        try:
            self.tagged[index] += os.write(self._spools[index], data)
        except OSError:  # a full disk: the lines around it are lost, too
            return

    def use(self, descriptors: tuple[int, int]) -> None:
        """Its spools have these descriptors now."""
        self._spools = descriptors

    def leave(self) -> None:
        """For a forked child: the page is its parent's, and a thread that it does not have may hold the lock."""
        self._page = None
        self._lock = threading.Lock()


def read_page(data: bytes) -> tuple[tuple[int, int], bytes] | None:
    """The offset of each spool, and the fragment that raw bytes behind it belong to; None while it is being written."""
    if len(data) < _HEAD.size + _EPISODE.size:
        return None
    length, crc = _HEAD.unpack_from(data)
    [episode] = _EPISODE.unpack_from(data, _HEAD.size)
    start = _HEAD.size + _EPISODE.size
    body = data[start : start + length]
    if length < _SINCE.size or zlib.crc32(body) != crc:
        return None
    return _SINCE.unpack_from(body), _with_episode(body[_SINCE.size :], episode)


def _with_episode(fields: bytes, episode: int) -> bytes:
    return fields if episode < 0 else b'%b"episode":%d,' % (fields, episode)


_process: ProcessAttribution | None = None
_thread: ContextVar[Attribution | None] = ContextVar("attribution", default=None)


def use(process: ProcessAttribution | None) -> None:
    """Called once, by `capture`."""
    global _process  # noqa: PLW0603  # descriptors 1 and 2 belong to the process, too
    _process = process


def process_attribution() -> ProcessAttribution | None:
    """That of this process."""
    return _process


def current() -> bytes:
    """The fragment of the calling thread."""
    mine = _thread.get()
    if mine is not None:
        return mine.fields
    return _process.fields if _process is not None else b""

"""Reads one spool at a bounded rate, and frees what it has read. The methods block."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import time
from typing import TYPE_CHECKING, Final

import msgspec

from governor.files import open_regular, write_whole
from governor.messages import OutputLine
from governor.output import spool
from governor.output.attribution import PAGE_BYTES, read_page
from governor.output.lines import Page, SpoolLines, header_of
from governor.output.shares import first_lines, last_task

if TYPE_CHECKING:
    from pathlib import Path

BURST_SECONDS: Final = 10.0
"""What a process may write at once: its rate for so long."""
SHARED: Final = 10
"""The lines of `shares` may be a part of the rate: one in so many."""
KEPT_BYTES: Final = 64 << 10
"""Of what is skipped the newest so many are not, while the rate allows no line."""
LAST_LINES: Final = 8
LAST_LOOKS: Final = 8
"""Before a spool is emptied what was written meanwhile is looked at so often, with so many lines of the rate for each time."""
COUNTED_BYTES: Final = 16 << 20
"""Skipped at once; of more the number of lines is an estimate."""
FREED_BYTES: Final = 4 << 20
"""What was read is freed in portions of so many."""
FREED_IF_TIGHT: Final = 256 << 10
"""As `FREED_BYTES`, on a disk that is nearly full."""
IDLE_SECONDS: Final = 0.5
"""Until it is asked whether anybody can still write."""
_PORTION: Final = 1 << 20
_LEAST_PORTION: Final = 4096
_MARK_BYTES: Final = 1024
_KEEP_SIZE_PUNCH_HOLE: Final = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE."""

_READ: Final = struct.Struct("=Q")
_READ_AT: Final = (PAGE_BYTES - 16, PAGE_BYTES - 8)
"""Where the page says how far each spool was read."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


class SpoolReader:
    """`path` is a spool (`spool`); rates are in lines and bytes a second. Raises OSError if it cannot be opened, or has other names: what
    is read of it is emptied.
    """

    def __init__(self, path: Path, *, lines_per_second: int, bytes_per_second: int) -> None:
        conductor, pid = spool.parse_stem(path.stem)
        self.path = path
        self.conductor = conductor
        self.lines_per_second = lines_per_second
        self.is_at_its_rate = False
        self.is_tight = False
        """The disk is nearly full: what is beyond the rate is freed at once."""
        self.idle_seconds = IDLE_SECONDS
        self._pid = pid
        self._stream = list(spool.STREAMS).index(path.suffix[1:])
        self.lines = SpoolLines(conductor=conductor, pid=pid, stream=self._stream, begun=_begun(path.stem))
        self._bytes_per_second = bytes_per_second
        self._file = open_regular(path, os.O_RDWR)
        self._page = _page_of(path)
        self._can_punch = True
        self._offset = self._freed = self._done = self._first_unread()
        self._lines_left = lines_per_second * BURST_SECONDS
        self._bytes_left = bytes_per_second * BURST_SECONDS
        self._shared_left = self._lines_left / SHARED
        self._task = b""
        """Of what was read or skipped last, as of `shares`."""
        self._line_bytes = 32.0
        self._read_at = self._grew_at = time.monotonic()

    def read(self, at: float, *, all_left: bool = False) -> list[OutputLine]:
        """The lines that were written since, at `at` (seconds since 1970); with `all_left` regardless of the rate."""
        self.done()
        size = os.fstat(self._file).st_size
        now = time.monotonic()
        self._refill(now)
        if size < self._offset:  # somebody has emptied it
            self._offset = self._freed = 0
        if size == self._offset:
            self.is_at_its_rate = False
            return self.lines.late(at) if self.lines.is_waiting else []
        self._grew_at = now
        allowed = int(min(self._bytes_left, max(self._lines_left * self._line_bytes, _LEAST_PORTION)))
        if self._lines_left < min(100, self.lines_per_second) or allowed < _MARK_BYTES:
            allowed = 0
        self.is_at_its_rate = size - self._offset > allowed
        portion = FREED_IF_TIGHT if self.is_tight else _PORTION
        empties = self.is_at_its_rate and size - self._freed >= portion and not all_left
        if empties and self.is_tight:
            allowed = max(allowed, _LEAST_PORTION)
        empties = empties and bool(allowed)
        if all_left:
            allowed = max(allowed, KEPT_BYTES)
        found: list[OutputLine] = []
        if empties or size - self._offset > 2 * max(
            allowed, KEPT_BYTES
        ):  # the first and the newest lines are kept
            found += self._read(allowed // 2, at, lines=None if all_left else int(self._lines_left) // 2)
            allowed -= allowed // 2
            if not empties:
                found += self._skip(size - max(allowed, KEPT_BYTES), at)
        if empties:
            found += self._empty(allowed, at)
        else:
            found += self._read(
                min(size - self._offset, allowed), at, lines=None if all_left else int(self._lines_left)
            )
        found += self.lines.late(at)
        if self.lines.lost:
            found.append(self._gap(at, (self.lines.lost, 0)))
            self.lines.lost = 0
        return _in_order(found, at)

    def empty(self, at: float) -> list[OutputLine]:
        """Drops all that is unread, and says how much that is."""
        found = self._skip(os.fstat(self._file).st_size, at)
        os.ftruncate(self._file, 0)
        self._offset = self._freed = 0
        return found

    def done(self) -> None:
        """What was returned is on disk: a reader that follows this one begins behind it. Its space is freed, but seldom: the kernel
        writes it to disk before it punches a hole.
        """
        held = self.lines.held_bytes if self._offset - self._done < FREED_BYTES else 0
        held = min(held, self._offset)  # the spool was emptied behind it
        if self._offset - held == self._done:
            return
        self._done = self._offset - held
        if self._page is not None:
            os.pwrite(self._page, _READ.pack(self._done), _READ_AT[self._stream])
        portion = FREED_IF_TIGHT if self.is_tight else FREED_BYTES
        if self._done - self._freed < portion and self._page is not None:
            return
        if self._can_punch:
            end = ctypes.c_long(self._done)
            self._can_punch = _libc.fallocate(self._file, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(0), end) == 0
            self._freed = self._done
        elif os.fstat(self._file).st_size == self._done:
            os.ftruncate(self._file, 0)
            self._offset = self._freed = self._done = 0
            if self._page is not None:
                os.pwrite(self._page, _READ.pack(0), _READ_AT[self._stream])

    def _read(self, allowed: int, at: float, *, lines: int | None = None) -> list[OutputLine]:
        """The lines in the next bytes, at most so many bytes and, if it is given, lines; parts of long lines apart."""
        found: list[OutputLine] = []
        while allowed > 0 and (lines is None or lines > 0):
            portion = int(max(min(allowed, self._lines_left * self._line_bytes), _LEAST_PORTION))
            data, page, behind = self._data(min(portion, allowed))
            if not data:
                break
            number = data.count(b"\n")
            if lines is not None:
                if number > lines:
                    end = _after_lines(data, lines)
                    data, behind = data[:end], data[end:] + behind
                    self.is_at_its_rate = True
                lines -= number
            start = self._offset
            self._offset += len(data)
            allowed -= len(data)
            self._task, _ = last_task(data, self._task)
            some = self.lines.feed(data, offset=start, at=at, page=page, behind=behind)
            found += some
            if some:
                self._line_bytes = len(data) / len(some)
            self._lines_left = max(self._lines_left - len(some), 0.0)
            self._bytes_left = max(self._bytes_left - len(data), 0.0)
        return found

    def is_over(self) -> bool:
        """Whether nobody can write any more. Asked only if it has not grown for a while."""
        if time.monotonic() - self._grew_at < self.idle_seconds:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def finish(self, at: float) -> list[OutputLine]:
        """The lines that are left; the spool is removed, if it can be."""
        found: list[OutputLine] = []
        while os.fstat(self._file).st_size > self._offset and len(found) < 2 * KEPT_BYTES:
            found += self.read(at, all_left=True)
        found += self.lines.close(at)
        self.close()
        with contextlib.suppress(OSError):  # a folder is in its place; a disk that fails
            self.path.unlink(missing_ok=True)
            others = [self.path.with_suffix(f".{stream}") for stream in spool.STREAMS]
            if not any(other.exists() for other in others):
                self.path.with_suffix(f".{spool.NOW}").unlink(missing_ok=True)
        return found

    def close(self) -> None:
        """Leaves the spool as it is. Idempotent."""
        if self._file < 0:
            return
        try:
            with contextlib.suppress(OSError):  # a disk that fails: some lines are read again
                self.done()
        finally:
            os.close(self._file)
            self._file = -1
            if self._page is not None:
                os.close(self._page)
                self._page = None

    def _refill(self, now: float) -> None:
        passed, self._read_at = now - self._read_at, now
        self._lines_left = min(
            self._lines_left + passed * self.lines_per_second, self.lines_per_second * BURST_SECONDS
        )
        rate = self.lines_per_second / SHARED
        self._shared_left = min(self._shared_left + passed * rate, rate * BURST_SECONDS)
        self._bytes_left = min(
            self._bytes_left + passed * self._bytes_per_second, self._bytes_per_second * BURST_SECONDS
        )

    def _data(self, size: int) -> tuple[bytes, Page | None, bytes]:
        """From the offset on; what the process did then; and what follows, if a mark in it may say what these bytes belong to."""
        data = os.pread(self._file, size, self._offset)
        page = self._page_now()  # newer than `data`, and the marks are newer than it: no byte is between them
        end = self._offset + len(data)
        if page is None or page.since < end:
            return data, page, b""
        return data, page, os.pread(self._file, min(page.since - end + _MARK_BYTES, KEPT_BYTES), end)

    def _page_now(self) -> Page | None:
        if self._page is None:
            return None
        for _ in range(10):  # it may be in the middle of a change
            if (shown := read_page(os.pread(self._page, PAGE_BYTES, 0))) is not None:
                break
        header = header_of(b"{%b}" % shown[1].rstrip(b",")) if shown is not None else None
        if shown is None or header is None:
            return None
        since = shown[0][self._stream]
        # The process has not seen yet that its spool was emptied.
        return Page(since if since <= os.fstat(self._file).st_size else 0, header)

    def _skip(self, until: int, at: float) -> list[OutputLine]:
        """Skips to the beginning of the first line behind `until`, and says how much that is."""
        if until <= self._offset:
            return []
        found = self.lines.close(at)
        position, counted_until = self._offset, min(until, self._offset + COUNTED_BYTES)
        lines = 0
        while position < counted_until:
            data = os.pread(self._file, min(_PORTION, until - position), position)
            if not data:
                break
            if position + len(data) < until:  # the next portion begins with a line
                data = data[: data.rfind(b"\n") + 1] or data
            counted = 0
            for start, end in self._shares(data, position):
                lines += data.count(b"\n", counted, start)
                if position + start > self._offset:
                    found.append(self._gap(at, (lines, position + start - self._offset)))
                found += self.lines.feed(
                    data[start:end],
                    offset=position + start,
                    at=at,
                    page=self._page_now(),
                    behind=data[end : end + KEPT_BYTES],
                )
                found += self.lines.close(at)
                self._offset, counted, lines = position + end, end, 0
            lines += data.count(b"\n", counted)
            position += len(data)
        size = until - self._offset
        lines = lines * size // max(position - self._offset, 1) + 1
        until += os.pread(self._file, spool.LINE_BYTES, until).find(b"\n") + 1
        skipped = until - self._offset
        self._offset = until
        return [*found, self._gap(at, (lines, skipped))] if skipped else found

    def _shares(self, data: bytes, offset: int) -> list[tuple[int, int]]:
        """As `first_lines`, of bytes that are skipped."""
        found, self._task = first_lines(data, self._task, most=int(self._shared_left))
        if found and found[0][0] == 0 and offset and os.pread(self._file, 1, offset - 1) != b"\n":
            found[0] = (data.find(b"\n") + 1, found[0][1])
        lines = sum(data.count(b"\n", start, end) for start, end in found)
        self._shared_left -= lines
        self._lines_left = max(self._lines_left - lines, 0.0)
        return found

    def _newest(self, keep: int, *, spare: int) -> int:
        """How many of the newest bytes, at most `keep`, have no more lines than are left of the rate, but for `spare`."""
        data = os.pread(self._file, keep, max(os.fstat(self._file).st_size - keep, 0))
        too_many = data.count(b"\n") - max(int(self._lines_left) - spare, 0)
        return keep if too_many <= 0 else len(data) - _after_lines(data, too_many)

    def _gap(self, at: float, dropped: tuple[int, int]) -> OutputLine:
        return OutputLine(
            at=at,
            conductor=self.conductor,
            pid=self._pid,
            stream=tuple(spool.STREAMS.values())[self._stream],
            text="",
            dropped=dropped,
        )

    def _empty(self, allowed: int, at: float) -> list[OutputLine]:
        """Reads the newest lines to the end, and empties the spool, which unlike a hole writes nothing to disk. Only what is written
        behind the last look is lost, and counted.
        """
        found: list[OutputLine] = []
        for left in range(LAST_LOOKS, -1, -1):
            size = os.fstat(self._file).st_size
            if size == self._offset:
                break
            found += self._skip(size - self._newest(allowed, spare=left * LAST_LINES), at)
            found += self._read(size - self._offset, at)
            allowed = _LEAST_PORTION
        lost = spool.size(self._file) - self._offset
        os.ftruncate(self._file, 0)
        if lost > 0:
            found.append(self._gap(at, (int(lost / self._line_bytes) + 1, lost)))
        self._offset = self._freed = 0
        return found

    def _first_unread(self) -> int:
        """Behind what an earlier daemon has read."""
        if self._page is None:
            return 0
        data = os.pread(self._page, _READ.size, _READ_AT[self._stream])
        [read] = _READ.unpack(data or bytes(_READ.size))
        return read if read <= os.fstat(self._file).st_size else 0


def _begun(stem: str) -> float:
    """When a process' output was captured, in seconds since 1970; 0 if its name does not say so."""
    try:
        return int(stem.rpartition("-")[2], 16) / 1e9
    except ValueError:
        return 0.0


def _after_lines(data: bytes, number: int) -> int:
    """The offset behind so many lines of `data`, which has as many."""
    start, end = 0, len(data)
    while number > 0 and end - start > 1:
        middle = (start + end) // 2
        before = data.count(b"\n", start, middle)
        if before < number:
            number -= before
            start = middle
        else:
            end = middle
    return end if number > 0 else 0


def _page_of(path: Path) -> int | None:
    """Where it is noted how far the spool was read: a page of its process, or, of one on another machine, of its reader."""
    page = path.with_suffix(f".{spool.NOW}")
    try:
        if not os.path.lexists(page):
            write_whole(page, bytes(PAGE_BYTES), sync=False, mode=0o600)
        return open_regular(page, os.O_RDWR)
    except OSError:  # a full disk, or a file that is not ours
        return None


def _in_order(lines: list[OutputLine], at: float) -> list[OutputLine]:
    """The time of raw lines is that of reading: what Python wrote behind one was not before it. None is later than now, `at`."""
    until = at
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].at > until:
            lines[index] = msgspec.structs.replace(lines[index], at=until)
        until = lines[index].at
    return lines

"""Bytes of one spool become lines: pure, fed by `collector`.

Rules:
1. A line ends with a newline. Of one that is redrawn (carriage returns, as of progress bars) the last state counts.
2. A line that is not over is given in parts: after a second, then ever more seldom, or at 16 KiB. One that is redrawn is given when it
   is over; until then it is `unfinished`.
3. What looks like a record and is none is raw.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from operator import attrgetter
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from governor.messages import OutputLine
from governor.output import spool

PARTIAL_SECONDS: Final = 1.0
LONGEST_WAIT: Final = 32.0
"""Seconds between two parts of a line."""
REST_BYTES: Final = spool.LINE_BYTES + 4096
"""Longest record."""
OPEN_LINES: Final = 64
"""Lines of a stream that are not over, at once: user code can write records of any number of threads."""
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]"
)
"""Control sequences of terminals (ECMA-48)."""
_END_OF_MARK: Final = b'"mark":1}\x1f\n'

_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Header(msgspec.Struct, frozen=True):
    """The JSON of a record (`spool`)."""

    at: float = 0.0
    level: str = ""
    logger: str = ""
    pid: _Number | None = None
    part: _Number | None = None
    more: _Number = 0
    lost: _Number = 0
    mark: _Number = 0
    since: _Number | None = None
    task: str = ""
    run: _Number | None = None
    attempt: _Number | None = None
    phase: str = ""
    episode: _Number | None = None
    evaluation: _Number | None = None
    node: str = ""


class Page(NamedTuple):
    """What the process was doing after the data were read, from an offset of this spool on."""

    since: int
    header: Header


class _Range(NamedTuple):
    """Raw bytes from one offset of the spool to another belong to this."""

    since: int
    until: int
    header: Header


_since: Final = attrgetter("since")
_decode: Final = msgspec.json.Decoder(Header).decode
_NOTHING: Final = Header()


def header_of(data: bytes) -> Header | None:
    """None for what is not the JSON of a record."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class _Unfinished:
    """A line that is not over."""

    __slots__ = ("at", "header", "is_redrawn", "patience", "since", "text")

    def __init__(self, header: Header, at: float) -> None:
        self.header = header
        self.at = at
        self.since = 0
        """Where the bytes begin that have its text, counted as `SpoolLines._fed`."""
        self.patience = PARTIAL_SECONDS
        self.is_redrawn = False
        self.text = bytearray()


class SpoolLines:
    """The lines of one spool. `at` is the time, in seconds since 1970; no line is older than `begun` or newer than now."""

    def __init__(self, *, conductor: str, pid: int, stream: int, begun: float = 0.0) -> None:
        self.lost = 0
        """Lines that the process could not write; whoever reads it sets it back."""
        self._conductor = conductor
        self._pid = pid
        self._begun = begun
        self._stream = tuple(spool.STREAMS.values())[stream]
        self._rest = b""
        """The beginning of a record."""
        self._fed = 0
        """Bytes that were fed before `_rest`."""
        self._shift = 0
        """Add this to an offset of the spool for a number of fed bytes."""
        self._end = self._given = 0
        """Fed bytes up to the end of what is being read, and up to that of the last line that was given."""
        self._open: dict[int | None, _Unfinished] = {}
        """Lines that are not over, by `part`; raw is None."""
        self._marked = _NOTHING
        self._page = Page(0, _NOTHING)
        self._ranges: list[_Range] = []
        self._found: list[OutputLine] = []

    def feed(
        self, data: bytes, *, offset: int, at: float, page: Page | None = None, behind: bytes = b""
    ) -> list[OutputLine]:
        """`data` begins at `offset` of the spool and follows what was fed before. Of `behind`, which is fed later, only the marks count."""
        base = offset - len(self._rest)
        data = self._rest + data
        self._page = page or self._page
        self._ranges = _ranges(data + behind if behind else data, base)
        fed, self._shift = self._fed, self._fed - base
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            self._end = fed + end + 1
            self._line(data[position:end], base + position, at)
            position = end + 1
        rest = data[position:]
        start = rest.find(spool.RECORD)
        if start < 0 or len(rest) - start > REST_BYTES:
            start = len(rest)
        self._rest = rest[start:]
        self._fed = self._end = fed + position + start
        self._raw(rest[:start], base + position, at)
        return self._take()

    def late(self, at: float) -> list[OutputLine]:
        """Parts of lines that nobody should wait for any longer."""
        for one in list(self._open.values()):
            if one.text and not one.is_redrawn and at - one.at >= one.patience:
                self._give(one, one.text, partial=True)
                one.text.clear()
                one.at, one.patience = at, min(2 * one.patience, LONGEST_WAIT)
        return self._take()

    @property
    def is_waiting(self) -> bool:
        """Whether a line is not over."""
        return bool(self._open)

    @property
    def held_bytes(self) -> int:
        """How many bytes, at the end of what was fed, are in no line yet, and no line was behind their first one."""
        since = (one.since for one in self._open.values() if one.text and one.since >= self._given)
        return self._fed - min(since, default=self._fed) + len(self._rest)

    def leave(self) -> list[OutputLine]:
        """The lines that are not over; another reader goes on behind them, with the bytes that are held then."""
        found = self.unfinished
        self._open.clear()
        return found

    @property
    def unfinished(self) -> list[OutputLine]:
        """The lines that are not over."""
        return [self._output(one, one.text, partial=True) for one in self._open.values() if one.text]

    def close(self, at: float) -> list[OutputLine]:
        """Nothing follows, or not what follows directly: the lines that are not over."""
        rest, self._rest = self._rest, b""
        if rest:
            header, text = _record(rest)
            if header is None:  # the process ended within its header
                self._raw(b"" if rest[1:2] == b"{" else rest, 0, at)
            elif not header.mark:
                self._text(header, rest[text:], 0, at, is_over=False)
        return self._take() + self.leave()

    def _line(self, line: bytes, offset: int, at: float) -> None:
        start = line.find(spool.RECORD)
        while start >= 0:
            following = line.find(spool.RECORD, start + 1)
            header, text = _record(line, start, following)
            if header is None:
                start = following
                continue
            self._raw(line[:start], offset, at)
            self.lost += header.lost
            if not header.mark:
                self._text(header, line[text:], offset + start, at, is_over=not header.more)
                return
            if header.since is None:
                self._marked = header
            raw = self._open.pop(None, None)  # what follows belongs to something else
            if raw is not None and raw.text:
                self._give(raw, raw.text)
            return
        self._raw(line, offset, at, is_over=True)

    def _raw(self, data: bytes, offset: int, at: float, *, is_over: bool = False) -> None:
        """Bytes of a raw line, or of its end."""
        if not data and not is_over:
            return
        if None not in self._open:
            self._open[None] = _Unfinished(self._raw_header(offset), at)
        self._add(None, data, offset, is_over=is_over)

    def _text(self, header: Header, text: bytes, offset: int, at: float, *, is_over: bool) -> None:
        """Text of a record that begins at `offset`."""
        if header.part not in self._open or header.part is None:
            new = _Unfinished(header, min(max(header.at, self._begun), at))
            if is_over:
                self._give(new, text)
                return
            if len(self._open) >= OPEN_LINES:
                oldest = self._open.pop(next(part for part in self._open if part is not None))
                self._give(oldest, oldest.text, partial=True)
            self._open[header.part] = new
        self._add(header.part, text, offset, is_over=is_over)

    def _add(self, part: int | None, data: bytes, offset: int, *, is_over: bool) -> None:
        one = self._open[part]
        first, before = 0, len(one.text)
        one.text += data
        if b"\r" in data:
            one.is_redrawn = True
            first = _last_state_start(one.text)
            one.text[:] = _last_state(one.text)
        while len(one.text) > spool.LINE_BYTES:
            self._give(one, one.text[: spool.LINE_BYTES], partial=True)
            del one.text[: spool.LINE_BYTES]
            first += spool.LINE_BYTES
        if first >= before:  # what was before is drawn over, or given
            one.since = offset + self._shift
            if part is None:  # of a record a part alone cannot be read again
                one.since += first - before
                self._given = min(self._given, one.since)
        if is_over:
            del self._open[part]
            self._give(one, one.text)

    def _raw_header(self, offset: int) -> Header:
        index = bisect_right(self._ranges, offset, key=_since) - 1
        if index >= 0 and offset < self._ranges[index].until:
            return self._ranges[index].header
        return (
            self._page.header
            if self._page.header is not _NOTHING and offset >= self._page.since
            else self._marked
        )

    def _give(self, one: _Unfinished, text: bytes | bytearray, *, partial: bool = False) -> None:
        self._given = self._end
        self._found.append(self._output(one, text, partial=partial))

    def _output(self, one: _Unfinished, text: bytes | bytearray, *, partial: bool) -> OutputLine:
        header = one.header
        if b"\r" in text:
            text = _last_state(text).rstrip(b"\r")
        return OutputLine(
            at=one.at,
            conductor=self._conductor,
            pid=header.pid or self._pid,
            stream=self._stream,
            text=text.decode("utf-8", "backslashreplace"),
            level=header.level,
            logger=header.logger,
            task=header.task,
            run=header.run,
            attempt=header.attempt,
            phase=header.phase,
            episode=header.episode,
            evaluation=header.evaluation,
            node=header.node,
            partial=partial,
        )

    def _take(self) -> list[OutputLine]:
        found, self._found = self._found, []
        return found


def plain(text: str) -> str:
    """One line of user code's output without control sequences (colours, for one); its indentation stays."""
    text = _SEQUENCES.sub("", text).expandtabs()
    return "".join(character if character.isprintable() else " " for character in text).rstrip()


def as_shown(line: str) -> str:
    """A line as it was printed, without its newline, as `governor logs` shows it."""
    return plain(line.rstrip("\r").rpartition("\r")[2])


def _record(data: bytes, start: int = 0, until: int = -1) -> tuple[Header | None, int]:
    """The header of what may be a record, and where its text begins. `until`: where the next one may begin, as no header contains
    `RECORD`; -1: nowhere.
    """
    end = data.find(spool.TEXT, start + 1, len(data) if until < 0 else until)
    return (header_of(data[start + 1 : end]), end + 1) if end > 0 else (None, 0)


def _ranges(data: bytes, base: int) -> list[_Range]:
    """Which raw bytes belong to what, as marks behind them say: of several marks the first one. In the order of offsets."""
    found: list[_Range] = []
    free: list[tuple[int, int]] = []
    """What no mark has claimed yet, in the order of offsets."""
    position, last = 0, 0
    while (tail := data.find(_END_OF_MARK, position)) >= 0:
        start = data.rfind(spool.RECORD, position, tail)
        end = tail + len(_END_OF_MARK)
        header = header_of(data[start + 1 : end - 2]) if start >= 0 else None
        position = end
        if header is None or header.since is None:
            continue
        free.append((last, base + start))
        last = base + end
        while free and free[-1][1] > header.since:
            since, until = free.pop()
            found.append(_Range(max(since, header.since), until, header))
            if since < header.since:
                free.append((since, header.since))
    found.sort(key=_since)
    return found


def _last_state_start(text: bytes | bytearray) -> int:
    """Where the last state of a line that is redrawn begins."""
    return text.rstrip(b"\r").rfind(b"\r") + 1


def _last_state(text: bytes | bytearray) -> bytes:
    """Of a line that is redrawn; one carriage return at its end stays, for what follows it draws anew."""
    state = bytes(text[_last_state_start(text) :])
    return state.rstrip(b"\r") + b"\r" * state.endswith(b"\r")

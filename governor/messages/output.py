"""What a run's user code has printed and logged: its lines as they are kept, the request for them, and the reply."""

from __future__ import annotations

import msgspec

from governor.messages.base import Message


class ReadOutput(Message, frozen=True):
    """What the run's user code printed and logged: the lines behind `cursor` (of an earlier `OutputPage`), for which all of these
    hold. `conductor` is its name, or what its name ends in behind a dot; `level` is the lowest one, of lines that have one.
    """

    uid: str
    cursor: dict[str, tuple[int, int]] = {}
    conductor: str | None = None
    since: float | None = None
    task: str | None = None
    episode: int | None = None
    level: str | None = None
    run: int | None = None
    attempt: int | None = None
    evaluation: int | None = None


class OutputLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line that user code has written. `at` is when Python wrote it, or when other output was seen (seconds since 1970). `node` is
    the name of the machine, if it is another one. `partial`: it goes on in the next line of that process and stream, or its process
    ended within it. `dropped`: instead of lines, so many lines and bytes are missing here.
    """

    at: float
    conductor: str
    pid: int
    stream: str
    text: str
    level: str = ""
    logger: str = ""
    task: str = ""
    run: int | None = None
    attempt: int | None = None
    phase: str = ""
    episode: int | None = None
    evaluation: int | None = None
    node: str = ""
    partial: bool = False
    dropped: tuple[int, int] | None = None


class OutputPage(Message, frozen=True):
    """Lines in the order of their times. `more`: others follow at once behind `cursor`. `unfinished`: lines at the end that are being
    written, progress bars for one. `ended`: the run has ended, and nothing will be added.
    """

    lines: tuple[OutputLine, ...]
    cursor: dict[str, tuple[int, int]]
    more: bool = False
    unfinished: tuple[OutputLine, ...] = ()
    ended: bool = False

"""What is told of an exception of user code: a reason of one line, a traceback, and the cause that failures are counted by.

Rules:
1. A reason ends in its place, ``(maze.py:28)``: the innermost frame of the user's own files, else of a library below our call.
2. In a traceback our frames are folded, and so are the many of a recursion; there are no local variables. A longer one than
   `TRACEBACK_BYTES` keeps its beginning and its end. Chains (``raise ... from``), groups and notes are kept.
3. Nothing here raises, whatever the exception's class does. Texts are UTF-8, and otherwise as user code made them: who prints
   one takes control characters out.
4. Values of the run's secrets are masked, and keys that this process uses (`hide`).
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from governor.errors import GovernorError, text_of
from governor.units.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from governor.messages import FailureKind

REASON_LENGTH: Final = 300
"""Characters of a reason, without its place."""
TRACEBACK_BYTES: Final = 16 * 1024
FRAMES: Final = (5, 15)
"""The outermost and innermost frames that are kept of each exception."""
SAME: Final = 256
"""Tracebacks that are kept, so that an error that comes again and again is rendered once."""

_ROOT: Final = Path(__file__).parents[1]
_LIBRARY: Final = f"{Path(os.__file__).parent}{os.sep}"
OURS: Final = tuple(f"{_ROOT / name}{os.sep}" for name in ("governor", "transport", "states"))
"""The folders of our own code."""
_MACHINERY: Final = (
    "<frozen importlib",
    *(
        f"{_LIBRARY}{name}"
        for name in (
            "importlib/__init__.py",
            "concurrent/futures/",
            "asyncio/",
            "runpy.py",
            "selectors.py",
            "threading.py",
        )
    ),
)
"""Files of Python whose frames stand between ours and those of user code."""
HIDDEN: Final = OURS + _MACHINERY
"""Frames of files that begin so are not shown."""
_PACKAGES: Final = ("site-packages", "dist-packages")
_SEPARATORS: Final = re.compile(r"[\s=;,]+")
_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")
_FRAME: Final = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
_PLACE: Final = re.compile(r" \([^()]*:\d+\)$")
_OF_MODEL: Final = "model: "
"""How the reason of an episode begins that failed while it waited for its language model."""
_OF_INFRASTRUCTURE: Final = re.compile(
    r"cannot (record its steps|write its line): |its result cannot be written: |no runner can be started: |environment: [A-Z]+ https?://\S+: (?!HTTP [1-4])"
)
"""How other reasons begin that are not of user code: an environment behind a server cannot be reached, or answers 5xx."""
_OUT_OF_MEMORY: Final = " was killed by Ray: "
"""Of a runner: Ray kills none but for its memory."""
SECRETS: Final = "GOVERNOR_SECRETS"
"""The environment variable with the names of those that hold secrets of the run, with a comma between them."""
_masks: dict[str, tuple[dict[str, str], Mask]] = {}
"""The last one for these names: a process may serve several runs, and user code may take them out of its environment."""
_hidden: dict[tuple[str, str], tuple[Mask, ...]] = {}
"""By variable and value; a new one each time, for other threads may be looking through it."""
_rendered: dict[Any, tuple[str, str]] = {}


class Reason(str):
    """A reason of one line, with the `traceback` of the exception that it tells of."""

    __slots__ = ("traceback",)
    traceback: str

    def __new__(cls, text: str, traceback: str = "") -> Self:
        reason = super().__new__(cls, text)
        reason.traceback = traceback
        return reason

    def within(self, where: str) -> Reason:
        """``environment.reset: ...``, with the same traceback."""
        return Reason(f"{where}: {self}", self.traceback)


def traceback_of(reason: str) -> str:
    """The traceback that a reason carries; "" for a plain text."""
    return reason.traceback if isinstance(reason, Reason) else ""


def reason_of(error: BaseException, *, length: int = REASON_LENGTH) -> Reason:
    """``ValueError: text (maze.py:28)``, the text shortened to `length`. An error of ours that has a reason keeps it."""
    if isinstance(error, GovernorError) and (reason := getattr(error, "reason", "")):
        return reason if isinstance(reason, Reason) else Reason(utf8(reason), _traceback_below(error))
    place, text = _render(error)
    return Reason(utf8(one_line(error, length=length) + place), text)


def one_line(error: BaseException, *, length: int = REASON_LENGTH) -> str:
    """``OSError: text``, shortened to `length`: of an error of the system, whose place says nothing to users."""
    head = _masked(_head(error))
    return head if len(head) <= length else f"{head[: length - 3]}..."


def stack_of(thread: int, reason: str) -> Reason:
    """`reason` with the place where this thread is, and its stack; as it is if the thread has ended."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # documented, for this purpose
    if frame is None:
        return Reason(reason)
    try:
        stack = _Folded(traceback.extract_stack(frame))
        found = _innermost((each.filename, each.lineno or 0) for each in stack)
        text = "".join(["Stack (most recent call last):\n", *stack.format()])
    except BaseException:  # noqa: BLE001  # rule 3
        return Reason(reason)
    return Reason(utf8(reason + found), shortened(utf8(text.rstrip("\n"))))


def cause_of(reason: str) -> str:
    """What failures are grouped by: the reason with each number replaced by ``#``, except the line of its place."""
    place = _PLACE.search(reason)
    text = reason[: place.start()] if place else reason
    return _NUMBERS.sub("#", text) + (place[0] if place else "")


def kind_of(outcome: str, reason: str) -> FailureKind:
    """What a failed episode, attempt or run of a task has failed of. The only place that decides it."""
    if outcome == "timed_out":
        return "time"
    if outcome == "crashed":
        return "limit" if _OUT_OF_MEMORY in reason else "infrastructure"
    if reason.startswith(_OF_MODEL):
        return "model"
    return "infrastructure" if _OF_INFRASTRUCTURE.match(reason) else "user"


def place_in(reason: str) -> str:
    """`` (maze.py:28)`` at the end of a reason, or ""."""
    found = _PLACE.search(reason)
    return found[0] if found else ""


def place_of(text: str) -> str:
    """The same of the innermost frame in the text of a traceback."""
    return _innermost((name, int(line)) for name, line in _FRAME.findall(text))


def signal_name(number: int) -> str:
    """Most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def utf8(text: str) -> str:
    """`text` as it can be sent and stored: surrogates become escapes, and secrets their names."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="backslashreplace").decode()
    return _masked(text)


def hide(name: str, value: str) -> None:
    """Masks the value of this environment variable from now on, though it is no secret of the run, and its parts: ``Bearer KEY`` has
    the key as one.
    """
    global _hidden  # noqa: PLW0603  # of the process, as its environment
    if (name, value) not in _hidden:
        parts = [Mask({name: part}) for part in (value, *_SEPARATORS.split(value))]
        _hidden = {**_hidden, (name, value): tuple(part for part in parts if part)}


def _masked(text: str) -> str:
    for mask in chain.from_iterable(_hidden.values()):
        text = mask.text(text)
    names = os.environ.get(SECRETS)
    if not names:
        return text
    values = {name: value for name in names.split(",") if (value := os.environ.get(name))}
    known = _masks.get(names)
    if known is None or (values and values != known[0]):
        known = _masks[names] = values, Mask(values)
    return known[1].text(text)


def shortened(text: str, limit: int = TRACEBACK_BYTES) -> str:
    """The beginning and the end of a text that has more than `limit` bytes."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    half = (limit - 64) // 2
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    return f"{head}\n... {len(raw) - 2 * half:,} bytes are left out ...\n{tail}"


def folded(error: BaseException) -> str:
    """The whole traceback, however long, our frames folded. Raises what the exception's class raises."""
    shown = traceback.TracebackException.from_exception(error, compact=True)
    todo: list[traceback.TracebackException | None] = [shown]
    while todo:
        one = todo.pop()
        if one is not None:
            one.stack = _Folded(one.stack)
            todo += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(shown.format())


class _Folded(traceback.StackSummary):
    """Frames of which runs of ours are one line, and the middle of many too."""

    def format(self) -> list[str]:
        lines: list[str] = []
        for kind, together in groupby(self._in_part(), key=_kind_of):
            frames = [*together]
            if kind == "user":
                lines += traceback.StackSummary.from_list(frames).format()
            elif kind == "left out":
                lines.append(f"  ... {frames[0].lineno:,} more frames\n")
            elif ours := sum(frame.filename.startswith(OURS) for frame in frames):
                lines.append(f"  ... {ours} frame{'' if ours == 1 else 's'} of run-governor\n")
        return lines

    def _in_part(self) -> Iterator[traceback.FrameSummary]:
        """The frames; in place of those left out, one without a file whose line is their number."""
        first, last = FRAMES
        out = sum(_kind_of(frame) == "user" for frame in self) - first - last
        if out <= 1:
            yield from self
            return
        number = 0
        for frame in self:
            if _kind_of(frame) != "user":
                yield frame
                continue
            number += 1
            if number == first + 1:
                yield traceback.FrameSummary("", out, "", lookup_line=False, line="")
            if number <= first or number > first + out:
                yield frame


def _kind_of(frame: traceback.FrameSummary) -> Literal["ours", "user", "left out"]:
    if not frame.filename:
        return "left out"
    return "ours" if frame.filename.startswith(HIDDEN) else "user"


def _render(error: BaseException) -> tuple[str, str]:
    """The place and the traceback. An exception that only differs in its text from one before is not rendered again."""
    try:
        key, last = _key(error), _last_line(error)
    except BaseException:  # noqa: BLE001  # rule 3
        key, last = None, ""
    if key is not None and (known := _rendered.get(key)) is not None:
        place, above = known
        return place, shortened(utf8(above + last))
    place = _place(error)
    try:
        text = folded(error).rstrip("\n")
    except BaseException:  # noqa: BLE001  # rule 3; and Python's own carets fail, rarely, while other threads parse (gh-106905)
        frames = [*_frames(error.__traceback__)][-FRAMES[1] :]
        users = [f'  File "{name}", line {line}\n' for name, line in frames if not name.startswith(HIDDEN)]
        text = "".join(["Traceback (most recent call last):\n", *users, _head(error)])
    if key is not None and text.endswith(last):
        if len(_rendered) >= SAME:
            _rendered.clear()
        _rendered[key] = place, text[: len(text) - len(last)]
    return place, shortened(utf8(text))


def _key(error: BaseException) -> Any:
    """Equal for exceptions whose tracebacks differ in the text of the last one alone; None for those that are rendered each time."""
    keys: list[Any] = []
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, BaseExceptionGroup | SyntaxError) or hasattr(one, "__notes__") or len(keys) > SAME:
            return None
        keys.append((type(one), str(one) if keys else "", tuple(_frames(one.__traceback__))))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return tuple(keys)


def _last_line(error: BaseException) -> str:
    """With which its traceback ends. Python may show more there, as names that are like one that is missing."""
    kind, text = type(error), str(error)
    name = (
        kind.__qualname__
        if kind.__module__ in {"builtins", "__main__"}
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{name}: {text}" if text else name


def _frames(found: TracebackType | None) -> Iterator[tuple[str, int]]:
    while found is not None:
        yield found.tb_frame.f_code.co_filename, found.tb_lineno
        found = found.tb_next


def _head(error: BaseException) -> str:
    """``ValueError: text of the error``, on one line."""
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:  # its text names the file: as the place does
        text = " ".join(str(error.msg).split())
    else:
        text = text_of(error)
    return f"{name}: {text}" if text else name


def _place(error: BaseException) -> str:
    """`` (maze.py:28)``, of the first exception of the chain that has one; "" without any."""
    one: BaseException | None = error
    for _ in range(SAME):
        if one is None:
            break
        if isinstance(one, SyntaxError) and one.filename and one.lineno:
            return f" ({Path(one.filename).name}:{one.lineno})"
        if found := _innermost(_frames(one.__traceback__)):
            return found
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return ""


def _innermost(frames: Iterator[tuple[str, int]]) -> str:
    """The innermost frame of the user's own files; without one, of a library that is not Python's own."""
    users = library = ""
    for filename, line in frames:
        if not filename.startswith(os.sep) or filename.startswith(OURS):
            continue
        if any(f"{os.sep}{name}{os.sep}" in filename for name in _PACKAGES):
            library = f" ({os.path.basename(filename)}:{line})"  # noqa: PTH119  # a Path costs ten times as much
        elif not filename.startswith(_LIBRARY):
            users = f" ({os.path.basename(filename)}:{line})"  # noqa: PTH119  # as above
    return users or library


def _traceback_below(error: GovernorError) -> str:
    """Of what user code has raised behind an error of ours."""
    cause = error.__cause__
    while isinstance(cause, GovernorError):
        if text := traceback_of(getattr(cause, "reason", "")):
            return text
        cause = cause.__cause__
    return "" if cause is None else _render(cause)[1]

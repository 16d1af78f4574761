"""Tracebacks on their way to the record: a text is reported once, and what has failed has its digest.

Rule: a process reports up to `MOST` texts of a phase, and beyond that the first one of a cause, `MOST` more.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeVar

import msgspec

from governor.failures import cause_of
from governor.messages import EpisodeRecord, TaskAttemptEnded, TaskRecord, TracebackSeen

F = TypeVar("F", EpisodeRecord, TaskRecord, TaskAttemptEnded)
MOST: Final = 1_000


class Tracebacks:
    """Those of one phase in this process."""

    def __init__(self) -> None:
        self._texts: list[TracebackSeen] = []
        self._reported: set[str] = set()
        self._causes: set[str] = set()

    def take(self, failed: F) -> F:
        """The same with the digest of its traceback in place of the text."""
        text = failed.traceback
        if not text:
            return failed
        digest = blake2b(text.encode(), digest_size=8).hexdigest()
        if digest not in self._reported:
            cause = cause_of(failed.reason if isinstance(failed, EpisodeRecord) else failed.error)
            first = cause not in self._causes and len(self._causes) < MOST
            if first or len(self._reported) < MOST:
                self._reported.add(digest)
                if first:
                    self._causes.add(cause)
                self._texts.append(TracebackSeen(digest=digest, text=text, first=first))
        return msgspec.structs.replace(failed, traceback=digest)

    def texts(self) -> list[TracebackSeen]:
        """The texts since the last call, to be reported before what has failed."""
        texts, self._texts = self._texts, []
        return texts

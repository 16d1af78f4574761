"""All spools of a folder, for a reader that is not the daemon: a script, or the agent of another node. The methods block."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from governor.output import spool
from governor.output.spool_reader import SpoolReader

if TYPE_CHECKING:
    from pathlib import Path

    from governor.messages import OutputLine


class SpoolFolder:
    """Rates are in lines and bytes a second, of each stream of a process."""

    def __init__(self, folder: Path, *, lines_per_second: int, bytes_per_second: int) -> None:
        self._folder = folder
        self._rates = {"lines_per_second": lines_per_second, "bytes_per_second": bytes_per_second}
        self._readers: dict[str, SpoolReader] = {}
        self._given_up: set[str] = set()
        """Spools that could not be removed."""

    def read(self, *, most: int | None = None, all_left: bool = False) -> list[OutputLine]:
        """The lines that were written since, by time; once there are `most` of them the other spools wait for the next call.
        `all_left`: of processes that are at work, too, regardless of the rate, and the spools are removed. Raises OSError.
        """
        self._find()
        now = time.time()
        found: list[OutputLine] = []
        for name, reader in list(self._readers.items()):
            if most is not None and len(found) >= most:
                break
            self._readers[name] = self._readers.pop(name)  # the others are first in the next call
            found += reader.read(now)
            if all_left or reader.is_over():
                found += reader.finish(now)
                del self._readers[name]
                if os.path.lexists(reader.path):
                    self._given_up.add(name)
        found.sort(key=lambda line: line.at)
        return found

    def unfinished(self) -> list[OutputLine]:
        """The lines that are not over."""
        return [line for reader in self._readers.values() for line in reader.lines.unfinished]

    def close(self) -> None:
        """What is unread stays. Idempotent."""
        while self._readers:
            self._readers.popitem()[1].close()

    def _find(self) -> None:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return
        for name in names:
            path = self._folder / name
            if name in self._readers or name in self._given_up:
                continue
            if not name.startswith(".") and path.suffix[1:] in spool.STREAMS:
                with contextlib.suppress(OSError, ValueError):  # ValueError: no name of ours
                    reader = self._readers[name] = SpoolReader(path, **self._rates)
                    reader.idle_seconds = 0.0  # the last words of a process that was killed are not late

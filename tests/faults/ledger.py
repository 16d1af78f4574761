"""The scenarios and findings of a campaign, in a file, so that an interrupted campaign can be continued."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = """
CREATE TABLE IF NOT EXISTS played (
    seed INTEGER NOT NULL, number INTEGER NOT NULL, fault TEXT NOT NULL, run TEXT NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (seed, number)
);
"""


@dataclass(kw_only=True)
class Entry:
    """How one scenario ended. `violations` has a line for each violation; `recovery` is seconds without Ray's own
    start, `recovery_with_ray` with it, None if the run ended before; `skipped` is the reason why no fault was injected.
    """

    seed: int
    number: int
    fault: str
    run: str
    outcome: str = ""
    reason: str = ""
    lost: int = 0
    doubled: int = 0
    orphans: int = 0
    hangs: int = 0
    recovery: float | None = None
    recovery_with_ray: float | None = None
    seconds: float = 0.0
    skipped: str = ""
    violations: list[str] = field(default_factory=list)


class Ledger:
    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path)
        self._file.executescript(SCHEMA)

    def write(self, entry: Entry) -> None:
        row = (entry.seed, entry.number, entry.fault, entry.run, json.dumps(asdict(entry)))
        with self._file:
            self._file.execute("INSERT OR REPLACE INTO played VALUES (?, ?, ?, ?, ?)", row)

    def numbers(self, seed: int) -> set[int]:
        return {
            number for (number,) in self._file.execute("SELECT number FROM played WHERE seed = ?", (seed,))
        }

    def entries(self, seed: int) -> list[Entry]:
        rows = self._file.execute("SELECT entry FROM played WHERE seed = ? ORDER BY number", (seed,))
        return [Entry(**json.loads(text)) for (text,) in rows]

    def close(self) -> None:
        self._file.close()

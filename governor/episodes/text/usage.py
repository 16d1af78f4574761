"""Usage of a language model: tokens and requests, and their sums over all processes of a phase.

Rule: the sums are written to the kernel before the end of an episode is reported. A killed process loses the usage of the
episodes that were running; a full disk loses no episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from governor import logs
from governor.episodes.records import episode_file
from governor.failures import one_line
from governor.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

log = logs.get_logger()


@dataclass(slots=True)
class Usage:
    """Sums: tokens of the answers received; requests sent, of which `retries` are retries."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    retries: int = 0


class StoredUsage:
    """``<run folder>/episodes/<phase>.usage``; `sums` begin with those of an earlier process."""

    def __init__(self, run_folder: Path, phase: str) -> None:
        self._path = episode_file.path_of(run_folder, phase).with_suffix(".usage")
        try:
            self.sums = msgspec.json.decode(self._path.read_bytes(), type=Usage)
        except (OSError, msgspec.MsgspecError):
            self.sums = Usage()

    def save(self) -> None:
        try:
            write_whole(self._path, msgspec.json.encode(self.sums), sync=False)
        except OSError as error:
            log.warning("usage.not_saved", path=str(self._path), reason=one_line(error))

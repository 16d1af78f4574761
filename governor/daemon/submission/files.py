"""The files that runs have when they are handed in: their staging, and the copies of their code."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from governor.errors import TryAgain
from governor.runs.record import code, snapshot, staging, work_tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
LOOK_SECONDS: Final = 0.5
"""For looking through the folder of the code: who submits waits for that."""


class CodeRecorder:
    """Records runs together with their code."""

    def __init__(self) -> None:
        self._next: dict[str, asyncio.Task[str]] = {}
        """By folder, the look at it that has not begun: it serves all who ask until then."""
        self._looking: dict[str, asyncio.Task[str]] = {}

    async def record(
        self,
        runs: Sequence[Path],
        folder: str,
        *,
        copies: bool,
        record: Callable[[code.Submission], Awaitable[T]],
        is_new: Callable[[T], bool],
    ) -> T:
        """Records runs with the code in a folder. If it `copies`, all of them have one copy of it. Raises UsageError for a folder that is
        too large for that, and as `recorded_with_files`.
        """
        if not copies:
            return await record(await self.submission_of(folder))

        async def record_copied() -> T:
            copy = staging.staging_of(runs[0]) / snapshot.FOLDER
            return await record(await asyncio.to_thread(_submission_of_copy, folder, copy))

        return await recorded_with_files(
            runs,
            stage=partial(_stage_copies, folder, runs),
            record=record_copied,
            is_new=is_new,
            what=f"the code in {folder} can't be copied",
        )

    async def submission_of(self, folder: str) -> code.Submission:
        """What is recorded of the code in a folder, as it is now or a little later."""
        look = self._next.get(folder)
        if look is None:
            look = self._next[folder] = asyncio.create_task(self._look(folder, self._looking.get(folder)))
        return code.Submission(digest=await asyncio.shield(look))

    async def _look(self, folder: str, before: asyncio.Task[str] | None) -> str:
        if before is not None:
            await asyncio.wait([before])
        self._looking[folder] = self._next.pop(folder)
        try:
            return await asyncio.to_thread(code.digest, Path(folder), seconds=LOOK_SECONDS)
        finally:
            del self._looking[folder]


def _submission_of_copy(folder: str, copy: Path) -> code.Submission:
    copied = {"copied_from": folder, **work_tree.describe(Path(folder))}
    return code.Submission(digest=code.digest(copy), copied=copied)


def _stage_copies(folder: str, runs: Sequence[Path]) -> None:
    first, *others = runs
    copy = staging.begin(first) / snapshot.FOLDER
    snapshot.take(Path(folder), copy)
    for run in others:
        snapshot.share(copy, staging.begin(run) / snapshot.FOLDER)


async def recorded_with_files(
    runs: Sequence[Path],
    *,
    stage: Callable[[], None],
    record: Callable[[], Awaitable[T]],
    is_new: Callable[[T], bool],
    what: str,
) -> T:
    """Stages the files of runs, then records them: the runs have the files if what `record` returns `is_new`. Raises TryAgain about
    `what`, and what `stage` and `record` raise.
    """
    is_recorded = False
    try:
        await asyncio.to_thread(stage)
        found = await record()
        is_recorded = is_new(found)
        if is_recorded:
            await asyncio.to_thread(_each, staging.publish, runs)
    except OSError as error:
        raise TryAgain(f"{what}: {error}") from error
    except asyncio.CancelledError:
        is_recorded = True  # possibly; the next start of the daemon finds out
        raise
    finally:
        if not is_recorded:
            await asyncio.to_thread(_each, staging.discard, runs)
    return found


def _each(change: Callable[[Path], None], runs: Sequence[Path]) -> None:
    for run in runs:
        change(run)

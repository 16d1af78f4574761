"""What an executor asks of groups: the runs that one run file with a matrix stands for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from governor.errors import GoingDown
from governor.executor.connection import key_of
from governor.executor.files import Packages
from governor.executor.following import Following
from governor.messages import (
    ChangeGroup,
    GetGroup,
    GroupChanged,
    GroupProgress,
    GroupReport,
    SubmitGroup,
    SubmittedGroup,
    WatchEnd,
    WatchGroup,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from governor.group_results import GroupResult
    from governor.messages.groups import GroupVerb
    from governor.run_file.load import Examined, Run

GROUP_SECONDS: Final = 120.0
"""Limit for what a daemon does with each of many runs."""


class Groups(Following, Packages):
    """The verbs of an `Executor` for groups."""

    async def submit_group(
        self,
        run: Run | Examined | Mapping[str, Any] | str | Path,
        key: str | None = None,
        *,
        folder: str | Path | None = None,
        matrix: Mapping[str, Any] | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> SubmittedGroup:
        """Submits all runs of a run file with a matrix, or none; returns the id of their group and their own ids, `uid` and `runs`.

        Args:
            run: as of `submit`.
            key: the same key gives the same group.
            folder: as of `submit`.
            matrix: keys of the section ``matrix``, beside those in the file: ``{"agents.walker.params.alpha": [0.1, 0.3], "seed": "range(5)"}``.
            name: the name of the runs, instead of that in the file.
            labels: labels of the runs, beside those in the file.

        Raises as `submit`; RunFileError has the faults of all runs.
        """
        from governor.run_file.load import group_in_plain  # noqa: PLC0415  # pydantic is slow; other verbs do without

        changes = {"matrix": dict(matrix or {}), "name": name, "labels": dict(labels or {})}
        data, home, source = await asyncio.to_thread(group_in_plain, run, folder, **changes)
        data, home = await self._with_code(data, home)
        asked = SubmitGroup(run=data, folder=home, key=key_of(key))
        return await self._ask(asked, SubmittedGroup, source=source, seconds=max(self.timeout, GROUP_SECONDS))

    async def group(self, uid: str, *, phase: str | None = None) -> GroupReport:
        """How a group stands: its cells, each with the state and the metrics of its last run; of one `phase`, else of the last phase that
        has some. Raises NoSuchRun.
        """
        return await self._ask(GetGroup(uid=uid, phase=phase), GroupReport, source=uid, send=self._gather)

    async def results_group(self, uid: str, *, phase: str | None = None) -> GroupResult:
        """What has come of a group so far, as a `governor.group_results.GroupResult`: cells that differ in their seeds alone are one
        line, with means and intervals. `phase` as of `group`. Raises NoSuchRun.
        """
        from governor.group_results import GroupResult  # noqa: PLC0415  # not for the other verbs

        return GroupResult.of(await self.group(uid, phase=phase))

    async def wait_group(self, uid: str) -> GroupResult:
        """Waits until all runs of a group have ended, also over a restart of the daemon, and returns its `results_group`. Raises as `wait`."""
        end: WatchEnd | None = None
        async for message in self.watch_group(uid):
            end = message if isinstance(message, WatchEnd) else end
        if end is None or end.outcome == "interrupted":
            raise GoingDown(f"the daemon went down; the runs of group {uid} go on when it is started again")
        return await self.results_group(uid)

    async def watch_group(self, uid: str) -> AsyncGenerator[GroupProgress | WatchEnd, None]:
        """How a group gets on: the number of its cells by state, and those that have `ended` since the message before; then the end. A cell may
        come twice after a restart of the daemon. Raises NoSuchRun, Unreachable.
        """
        async for messages in self._follow(WatchGroup(uid=uid)):
            for message in messages:
                if isinstance(message, GroupProgress | WatchEnd):
                    yield message

    async def abort_group(self, uid: str, reason: str = "", *, dry_run: bool = False) -> GroupChanged:
        """Ends all runs of a group in order; `changed` is their number. Raises NoSuchRun."""
        return await self._change_group(uid, "abort", reason, dry_run=dry_run)

    async def pause_group(
        self, uid: str, reason: str = "", *, hard: bool = False, dry_run: bool = False
    ) -> GroupChanged:
        """As `pause`, for all runs of a group that have not ended; `changed` is the number of those that were not paused. Raises NoSuchRun, TryAgain."""
        return await self._change_group(uid, "pause", reason, hard=hard, dry_run=dry_run)

    async def continue_group(self, uid: str, reason: str = "", *, dry_run: bool = False) -> GroupChanged:
        """As `continue_`, for all paused runs of a group. Raises NoSuchRun, TryAgain."""
        return await self._change_group(uid, "continue", reason, dry_run=dry_run)

    async def set_group(
        self, uid: str, values: Mapping[str, Any], reason: str = "", *, dry_run: bool = False
    ) -> GroupChanged:
        """As `set`, for all runs of a group that have not ended: none of them, where one refuses it. Raises as `set`."""
        return await self._change_group(uid, "set", reason, dry_run=dry_run, values=dict(values))

    async def resume_group(self, uid: str, *, dry_run: bool = False) -> GroupChanged:
        """As `resume`, for all cells of a group whose last run has failed or was aborted; `runs` are the new runs. Raises NoSuchRun, TryAgain."""
        return await self._change_group(uid, "resume", dry_run=dry_run)

    async def _change_group(
        self,
        uid: str,
        verb: GroupVerb,
        reason: str = "",
        *,
        hard: bool = False,
        dry_run: bool = False,
        values: Mapping[str, Any] | None = None,
    ) -> GroupChanged:
        asked = ChangeGroup(
            uid=uid, verb=verb, reason=reason, hard=hard, dry_run=dry_run, values=dict(values or {})
        )
        return await self._ask(asked, GroupChanged, source=uid, seconds=max(self.timeout, GROUP_SECONDS))

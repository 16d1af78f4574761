"""What an executor asks of runs that have not ended, and of the daemon itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from governor.executor.connection import Connection
from governor.messages import (
    Abort,
    Changed,
    ChangeRun,
    ChangeWork,
    Continue,
    Done,
    Drain,
    Pause,
    Reload,
    Reloaded,
    RunChanged,
    ShutdownDaemon,
    Stop,
    Undrain,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class Control(Connection):
    """The verbs of an `Executor` that steer."""

    async def pause(
        self, uid: str, reason: str = "", *, hard: bool = False, dry_run: bool = False
    ) -> Changed:
        """Has no further episode or task of a run begin, until `continue_`, also over a restart of the daemon; a queued run stays in the
        queue. `hard`: what runs is interrupted too, its slot becomes free, and what had not ended is done again. `dry_run`: only says
        whether that would change something. Raises NoSuchRun, AlreadyEnded, TryAgain, UsageError for a hard pause of a run with
        ``resume: never``.
        """
        asked = Pause(uid=uid, reason=reason, hard=hard, dry_run=dry_run)
        return await self._ask(asked, Changed, source=uid)

    async def continue_(self, uid: str, reason: str = "", *, dry_run: bool = False) -> Changed:
        """Ends a pause, also one that a condition of the run has asked for. Raises as `pause`."""
        return await self._ask(Continue(uid=uid, reason=reason, dry_run=dry_run), Changed, source=uid)

    async def cancel(
        self,
        uid: str,
        *,
        episode: int | None = None,
        task: str | None = None,
        phase: str | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Changed:
        """Ends one episode, by its index, or one task, by its id, as ``cancelled``, whether or not it has begun; its phase goes on. `task` may
        be one run of a task that repeats, as ``fit[2]``. `phase`: the name of the phase at work, else it is refused. Raises NoSuchRun,
        AlreadyEnded, TryAgain when none such is at work, UsageError for one that the phase does not have.
        """
        asked = ChangeWork(uid, "cancel", phase, episode, task, reason, dry_run)
        return await self._ask(asked, Changed, source=uid)

    async def requeue(
        self,
        uid: str,
        *,
        episode: int | None = None,
        task: str | None = None,
        phase: str | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Changed:
        """Ends what runs of one episode or one task, and does it again, at the cost of none of its retries. Arguments and errors as of
        `cancel`.
        """
        asked = ChangeWork(uid, "requeue", phase, episode, task, reason, dry_run)
        return await self._ask(asked, Changed, source=uid)

    async def set(
        self, uid: str, values: Mapping[str, Any], reason: str = "", *, dry_run: bool = False
    ) -> RunChanged:
        """Gives keys of the run file other values, by their paths, as ``{"limits.wall_clock": "2h"}``; the answer says from when on each
        counts. Raises NoSuchRun, AlreadyEnded, TryAgain, UsageError for a path that leads nowhere or what can't change now, RunFileError for
        values that it can't have.
        """
        asked = ChangeRun(uid=uid, values=dict(values), reason=reason, dry_run=dry_run)
        return await self._ask(asked, RunChanged, source=uid)

    async def abort(self, uid: str, reason: str = "") -> None:
        """Asks for the end of a run, in order; `wait` waits for it. Its result has the `reason`. Raises NoSuchRun, AlreadyEnded, TryAgain."""
        await self._ask(Abort(uid=uid, reason=reason), Done, source=uid)

    async def drain(self, reason: str = "", *, dry_run: bool = False) -> Changed:
        """Has the daemon begin no queued run, also after its restart, until `undrain`. Runs in work go on, submitted ones wait."""
        return await self._ask(Drain(reason=reason, dry_run=dry_run), Changed)

    async def undrain(self, reason: str = "", *, dry_run: bool = False) -> Changed:
        """Has the daemon begin runs again; takes back a `shutdown` when idle, too."""
        return await self._ask(Undrain(reason=reason, dry_run=dry_run), Changed)

    async def shutdown(self, reason: str = "", *, when_idle: bool = False, dry_run: bool = False) -> Changed:
        """Ends the daemon. Its runs are interrupted and go on at its next start; with `when_idle` no queued run begins any more, and it
        ends once none is in work.
        """
        return await self._ask(ShutdownDaemon(reason=reason, when_idle=when_idle, dry_run=dry_run), Changed)

    async def reload(self) -> Reloaded:
        """Has the daemon read its configuration again and apply it. Raises ConfigError with all faults: then nothing is changed."""
        return await self._ask(Reload(), Reloaded)

    async def stop(self, reason: str = "") -> None:
        """Has a `RunGovernor` abort its runs and end. Raises UsageError for a daemon: a signal stops that."""
        await self._ask(Stop(reason=reason), Done)

"""Whether queued runs may begin: `drain`, `undrain`, and `shutdown` of the daemon.

Rules:
1. A drained daemon begins no run; those in work go on, and others are accepted into the queue. It is on record: the next start is
   drained, too.
2. A shutdown when idle begins no run either, and ends the daemon once none is in work. It is of this process alone: the next start
   begins runs again. `undrain` takes back both.
3. Each verb may be sent again. What is so already is answered with ``changed`` False, and not recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.messages import Changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.journal.journal import Journal
    from governor.messages import Drain, ShutdownDaemon, Undrain

DRAINED: Final = "daemon.drained"
UNDRAINED: Final = "daemon.undrained"
SHUTDOWN: Final = "daemon.shutdown_requested"

log = logs.get_logger()


class Draining:
    """`is_idle`: whether no run is in work. `end` ends the daemon for a reason, `changed` is called when runs may begin again, or no more."""

    def __init__(
        self,
        journal: Journal,
        *,
        is_idle: Callable[[], bool],
        end: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._is_idle = is_idle
        self._end = end
        self._changed = changed
        self._drained: str | None = None
        """The reason, which may be empty."""
        self._when_idle: str | None = None
        """Likewise, of a shutdown when idle."""

    async def load(self) -> None:
        """Raises JournalError."""
        last = await self._journal.read(lambda: self._journal.last_of_daemon((DRAINED, UNDRAINED)))
        if last is not None and last.kind == DRAINED:
            self._drained = str(last.data.get("reason", ""))

    @property
    def state(self) -> str:
        """Of the daemon: ``serving``, ``drained``, or ``ending when idle``."""
        if self._when_idle is not None:
            return "ending when idle"
        return "serving" if self._drained is None else "drained"

    @property
    def waits_for(self) -> str:
        """Why no queued run begins; empty: they may."""
        if self._when_idle is not None:
            return "the next start of the daemon, which ends when it is idle" + _told(self._when_idle)
        return (
            ""
            if self._drained is None
            else "`governor undrain`, the daemon is drained" + _told(self._drained)
        )

    async def drain(self, asked: Drain, by: dict[str, Any]) -> Changed:
        """Raises JournalError."""
        found = self._answer(changed=self._drained is None, dry_run=asked.dry_run)
        if found.changed and not asked.dry_run:
            self._drained = asked.reason  # first: no run begins while that is being recorded
            try:
                await self._record(DRAINED, asked.reason, by)
            except BaseException:
                self._drained = None
                self._changed()
                raise
            self._changed()
        return found

    async def undrain(self, asked: Undrain, by: dict[str, Any]) -> Changed:
        """Raises JournalError."""
        found = self._answer(changed=self.state != "serving", dry_run=asked.dry_run)
        if found.changed and not asked.dry_run:
            await self._record(UNDRAINED, asked.reason, by)
            self._drained = self._when_idle = None
            self._changed()
        return found

    async def shut_down(self, asked: ShutdownDaemon, by: dict[str, Any]) -> Changed:
        """Raises JournalError."""
        found = self._answer(changed=not asked.when_idle or self._when_idle is None, dry_run=asked.dry_run)
        if found.changed and not asked.dry_run:
            await self._record(SHUTDOWN, asked.reason, by, when_idle=asked.when_idle)
            if asked.when_idle:
                self._when_idle = asked.reason
                self._changed()
                self.end_if_idle()
            else:
                self._end(asked.reason or "shut down by request")
        return found

    def end_if_idle(self) -> None:
        """A run may have left its slot."""
        if self._when_idle is not None and self._is_idle():
            self._end(self._when_idle or "shut down when idle, by request")

    def _answer(self, *, changed: bool, dry_run: bool) -> Changed:
        return Changed(uid="", changed=changed, state=self.state, dry_run=dry_run)

    async def _record(self, kind: str, reason: str, by: dict[str, Any], **more: Any) -> None:
        data = {"reason": reason, **more}
        log.info(kind, by=by, **data)
        await self._journal.write(lambda transaction: transaction.event_of_daemon(kind, {**data, "by": by}))


def _told(reason: str) -> str:
    return f": {reason}" if reason else ""

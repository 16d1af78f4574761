"""Agent conductor: runs one agent that acts and learns; steps arrive on its direct socket.

The service `agent.<uid>.<name>` answers `control.Join`, `Copy` and `ReportHang`. Settings: `entry`, `params`, `state`.
User code runs in one daemon thread, never in the event loop. The agent's learned state is in ``<run
folder>/agents/<name>.state``.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.conductors.conductor import Conductor
from governor.episodes.agents import AgentSource
from governor.episodes.context import Context
from governor.episodes.records.checkpoints import COPY_SECONDS
from governor.episodes.remote import control
from governor.episodes.remote.agent_host import AgentHost
from governor.errors import ConductorError
from governor.failures import Reason, traceback_of
from governor.messages import AgentRestored

if TYPE_CHECKING:
    from governor.messages import Acknowledged, ConductorSpec
    from governor.messages.link import Link

CLOSE_SECONDS = 2.0
RESTORING_SECONDS = 1.0
"""After this time a worker that waits for a session is told how far the agent has come."""

log = logs.get_logger()


class AgentConductor(Conductor):
    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        self._agent_name = spec.name.removeprefix("agent.")
        source = AgentSource(
            entry=spec.settings["entry"],
            params=spec.settings.get("params", {}),
            seed=spec.seed,
            state_path=Path(spec.run_folder) / "agents" / f"{self._agent_name}.state",
            first_state=spec.settings.get("state"),
            context=Context(run_id=spec.uid, run_folder=Path(spec.run_folder), name=spec.name),
        )
        socket = Path(spec.socket_folder) / f"{spec.name}.{spec.incarnation}"
        self.host = AgentHost(source, name=spec.name, path=socket, goes_on=spec.incarnation > 1)
        self._sessions: dict[control.Join, str] = {}
        self._opening: dict[control.Join, asyncio.Task[str]] = {}
        self._reporting: asyncio.Task[Acknowledged] | None = None
        self._joining = asyncio.Lock()
        self._serial = count()

    async def prepare(self) -> dict[str, Any]:
        await self.host.start()
        watch = asyncio.create_task(self._watch_thread(), name=f"{self.spec.name}.watch")
        self.services.callback(watch.cancel)
        service = control.agent_service(self.spec.uid, self._agent_name)
        await self.offer(service, control.decode_agent_control, self._answer)
        return {"service": service, "entry": self.spec.settings["entry"], "learned": self.host.loaded}

    @property
    def progress(self) -> int:
        return self.host.replayed

    async def close(self) -> None:
        await self.services.aclose()
        await self.host.close(seconds=CLOSE_SECONDS)

    async def _watch_thread(self) -> None:
        await self.host.ended.wait()
        self.fail(
            Reason(
                f"agent {self._agent_name!r} has lost its thread: {self.host.fault}",
                traceback_of(self.host.fault),
            )
        )

    async def _answer(self, wanted: control.AgentControl) -> control.ControlAnswer:
        match wanted:
            case control.Join():
                return await self.while_alive(self._join(wanted))
            case control.ReportHang():
                return self._answer_hang(wanted)
            case control.Copy():
                return await self.while_alive(self._copy(wanted))

    async def _copy(self, wanted: control.Copy) -> control.Accepted | control.Restoring | control.Failed:
        if wanted.join is not None and (self._opening or not self.host.is_built):
            joined = await self._join(wanted.join)
            if not isinstance(joined, control.Joined):
                return joined
        limit = asyncio.timeout(COPY_SECONDS)
        try:
            async with limit:
                await self.host.run_in_thread(partial(self.host.copy, Path(wanted.path)))
        except Exception as error:  # noqa: BLE001  # user code, and the disk
            if limit.expired():
                self._abandon(f"no state for a checkpoint within {COPY_SECONDS:g} s")
            return control.Failed.of(error)
        return control.Accepted()

    async def _join(self, wanted: control.Join) -> control.Joined | control.Restoring | control.Failed:
        async with self._joining:
            session = self._sessions.get(wanted)
            refused = control.refusal(wanted, self._sessions)
            if refused is not None:
                return refused
            try:
                session = session or await self._opened(wanted)
            except ConductorError as error:
                return control.Failed.of(error)
            if session is None:
                return control.Restoring(steps=self.host.replayed)
        return control.Joined(
            session=session,
            endpoint=self.host.endpoint,
            needs_info=self.host.needs_info,
            hears_ends=self.host.hears_ends,
            masked=self.host.is_masked,
        )

    async def _opened(self, wanted: control.Join) -> str | None:
        """The session; None if the agent learns again what is on record, which may take long. Raises ConductorError."""
        for other in [*self._opening]:
            if other != wanted and await self._is_open(other):  # of a worker that is gone
                del self._opening[other]
        if any(other != wanted for other in self._opening):
            return None
        if wanted not in self._opening:
            name = f"{self.spec.name}.open_session"
            self._opening[wanted] = asyncio.create_task(self._open_session(wanted), name=name)
        return (await self._opening.pop(wanted)) if await self._is_open(wanted) else None

    async def _is_open(self, wanted: control.Join) -> bool:
        """Waits; False while the agent learns again."""
        replayed, opening = self.host.replayed, self._opening[wanted]
        while not opening.done():
            await asyncio.wait({opening}, timeout=RESTORING_SECONDS)
            if not opening.done() and self.host.replayed != replayed:
                return False
        return True

    async def _open_session(self, wanted: control.Join) -> str:
        """Opens a session in place of those that it supersedes; its name. Raises ConductorError."""
        # Late messages can't be taken for those of a later incarnation.
        session = f"session-{self.spec.incarnation}-{next(self._serial)}"
        old = [held for held in self._sessions if control.supersedes(wanted, held)]
        found = await self.host.run_in_thread(
            partial(
                self.host.open_session,
                session.encode(),
                observation=wanted.observation_space,
                action=wanted.action_space,
                old=[self._sessions[held].encode() for held in old],
                max_staleness=wanted.max_staleness,
                worker=wanted.worker,
                workers=wanted.workers,
                trains=wanted.trains,
                seed=wanted.seed,
                so_far=wanted.so_far,
            )
        )
        if found is not None:
            restored = AgentRestored(phase=wanted.phase, agent=self._agent_name, **found._asdict())
            self._reporting = asyncio.create_task(self.link.report(restored), name=f"{self.spec.name}.report")
        for held in old:
            del self._sessions[held]
        self._sessions[wanted] = session
        return session

    def _answer_hang(self, hang: control.ReportHang) -> control.Accepted | control.NotExpired:
        """Whether the agent hangs at the very request that is overdue; it may be at another one, or at a slot that
        has time left.
        """
        work = self.host.current_work(hang.session.encode(), hang.number)
        if hang.due and (work is None or work.slot not in {None, *hang.due}):
            return control.NotExpired()
        if work is None:
            return control.Accepted()
        at = self.host.stack("")
        self._abandon("no answer by the episode's deadline")
        return control.Accepted(slot=work.slot, place=str(at), stack=at.traceback)

    def _abandon(self, why: str) -> None:
        reason = self.host.stack(f"agent {self._agent_name!r} hangs: {why}")
        self.host.abandon()
        self.fail(reason)

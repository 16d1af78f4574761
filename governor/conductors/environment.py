"""Environment conductor: keeps a pool of environments and leases them; steps arrive on each one's direct socket.

The service `environment.<uid>.<name>` answers `control.Acquire` and `control.Release`. Settings: `entry`, `params`,
`pool`, `vector`. User code runs in one daemon thread for each environment, never in the event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from governor.conductors.conductor import Conductor
from governor.episodes.remote import control
from governor.episodes.remote.environment_pool import EnvironmentPool
from governor.errors import ExitCode
from governor.messages import ConductorCommand, ConductorSpec, Done, Refused
from transport.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.messages.link import Link
    from transport.worker import Request


class EnvironmentConductor(Conductor):
    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        settings = spec.settings
        self.pool = EnvironmentPool(
            entry=settings["entry"],
            params=settings.get("params", {}),
            size=settings.get("pool", 1),
            name=f"{spec.name}.{spec.incarnation}",
            folder=Path(spec.socket_folder),
            on_lost=self.fail,
            vector=settings.get("vector", 1),
        )
        self._worker: Worker | None = None

    async def prepare(self) -> dict[str, Any]:
        await self.pool.start()
        plain = self.spec.name.removeprefix("environment.")
        service = control.environment_service(self.spec.uid, plain)
        self._worker = Worker(
            self.spec.worker_endpoint, service, self._serve, credit=64, secret=self.spec.secret
        )
        self._worker.start()
        await self._worker.registered()
        return {"service": service, "entry": self.spec.settings["entry"], "pool": self.pool.size}

    async def perform(self, command: ConductorCommand) -> Done | Refused:
        return Refused(
            code="usage",
            message=f"an environment conductor does not perform {type(command).__name__}",
            exit_code=ExitCode.USAGE,
        )

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker.aclose()
        await self.pool.close()

    async def _serve(self, request: Request) -> Sequence[bytes]:
        try:
            wanted = control.decode_environment_control(request.body[0])
        except (IndexError, msgspec.MsgspecError) as error:
            return [control.encode(control.Failed(reason=f"no request for an environment: {error}"))]
        answer: control.ControlAnswer
        match wanted:
            case control.Acquire():
                answer = await self.while_alive(self.pool.acquire(wanted))
            case control.Release():
                answer = await self.pool.release(wanted)
        return [control.encode(answer)]

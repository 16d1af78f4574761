"""Environment conductor: keeps a pool of environments, a process each, and leases them; steps arrive on each one's direct socket.

The service `environment.<uid>.<name>` answers `control.Acquire` and `control.Release`. Settings: `entry`, `params`,
`wrappers`, `pool`, `vector`, `liveness`. It runs no user code: its processes do (`environment_process`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor.conductors.conductor import Conductor
from governor.episodes.remote import control
from governor.episodes.remote.environments.messages import Order
from governor.episodes.remote.environments.pool import LIVENESS_SECONDS, EnvironmentPool
from governor.messages import encode
from governor.processes import process

if TYPE_CHECKING:
    import socket

    from governor.messages import ConductorSpec
    from governor.messages.link import Link

TARGET: Final = "governor.conductors.environment_process:main"


class EnvironmentConductor(Conductor):
    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        self.pool = EnvironmentPool(
            self._start_process,
            size=spec.settings.get("pool", 1),
            name=f"{spec.name}.{spec.incarnation}",
            plain=spec.name.removeprefix("environment."),
            folder=Path(spec.socket_folder),
            on_lost=self.fail,
            liveness=spec.settings.get("liveness", LIVENESS_SECONDS),
        )

    async def prepare(self) -> dict[str, Any]:
        await self.pool.start()
        plain = self.spec.name.removeprefix("environment.")
        service = control.environment_service(self.spec.uid, plain)
        await self.offer(service, control.decode_environment_control, self._answer)
        return {"service": service, "entry": self.spec.settings["entry"], "pool": self.pool.size}

    async def close(self) -> None:
        await self.services.aclose()
        await self.pool.close()

    async def _answer(self, wanted: control.EnvironmentControl) -> control.ControlAnswer:
        match wanted:
            case control.Acquire():
                return await self.while_alive(self.pool.acquire(wanted))
            case control.Release():
                return await self.pool.release(wanted)

    async def _start_process(self, name: str, path: Path, connection: socket.socket) -> process.ChildProcess:
        order = Order(spec=self.spec, name=name, path=str(path))
        return await process.start(name=name, target=TARGET, payload=encode(order), connection=connection)

"""Environment conductor: keeps a pool of environments and leases them; steps arrive on each one's direct socket.

The service `environment.<uid>.<name>` answers `control.Acquire` and `control.Release`. Settings: `entry`, `params`,
`wrappers`, `pool`, `vector`. User code runs in one daemon thread for each environment, never in the event loop.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from governor.conductors.conductor import Conductor
from governor.episodes.context import Context
from governor.episodes.remote import control
from governor.episodes.remote.environment_host import EnvironmentHost
from governor.episodes.remote.environment_pool import EnvironmentPool
from governor.messages.commands import Wrapper

if TYPE_CHECKING:
    from governor.messages import ConductorSpec
    from governor.messages.link import Link


class EnvironmentConductor(Conductor):
    def __init__(self, *, spec: ConductorSpec, link: Link) -> None:
        super().__init__(spec=spec, link=link)
        settings = spec.settings
        new_host = partial(
            EnvironmentHost,
            entry=settings["entry"],
            params=settings.get("params", {}),
            wrappers=[Wrapper.model_validate(each) for each in settings.get("wrappers", ())],
            vector=settings.get("vector", 1),
            context=Context(run_id=spec.uid, run_folder=Path(spec.run_folder), name=spec.name),
        )
        self.pool = EnvironmentPool(
            new_host,
            size=settings.get("pool", 1),
            name=f"{spec.name}.{spec.incarnation}",
            folder=Path(spec.socket_folder),
            on_lost=self.fail,
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

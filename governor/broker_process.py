"""The broker's process, kept alive: started, watched by its sentinel, restarted with back-off.

Workers register again and clients send idempotent requests again by themselves, so a restart delays a run and changes
nothing of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.conductors import process
from governor.conductors.kill_ladder import Rungs, bring_down
from governor.errors import ProcessError
from transport.broker import encode_settings
from transport.errors import TransportError

if TYPE_CHECKING:
    from governor.conductors.process import ChildProcess
    from transport.client import Client

FIRST_BACK_OFF: Final = 0.05
BACK_OFF_LIMIT: Final = 5.0
STEADY_SECONDS: Final = 30.0
"""After which the back-off begins anew."""
ANSWER_SECONDS: Final = 10.0

log = logs.get_logger()


class BrokerProcess:
    """`run` keeps the broker alive until it is cancelled; then it has been brought down when `run` returns."""

    def __init__(self, *, client_endpoint: str, worker_endpoint: str, client_group: str | None) -> None:
        self._payload = encode_settings(
            client_endpoint=client_endpoint, worker_endpoint=worker_endpoint, client_group=client_group
        )
        self.restarts = 0
        self.pid: int | None = None

    async def run(self) -> None:
        back_off = FIRST_BACK_OFF
        loop = asyncio.get_running_loop()
        while True:
            await process.warm()
            child = process.start(name="broker", target="transport.broker:main", payload=self._payload)
            self.pid = child.pid
            begun = loop.time()
            code = await self._outlive(child)
            self.restarts += 1
            back_off = (
                FIRST_BACK_OFF if loop.time() - begun > STEADY_SECONDS else min(2 * back_off, BACK_OFF_LIMIT)
            )
            log.warning("broker.exited", pid=child.pid, exit_code=code, restart_in=back_off)
            await asyncio.sleep(back_off)

    async def _outlive(self, child: ChildProcess) -> int:
        try:
            return await child.wait()
        except asyncio.CancelledError:
            await bring_down(child, rungs=Rungs(ask=0.0, terminate=2.0, kill=5.0))
            raise


async def answering(client: Client) -> None:
    """Returns when the broker answers. Raises ProcessError when it does not in ten seconds."""
    try:
        await client.request("mmi.service", b"governor", timeout=ANSWER_SECONDS, idempotent=True)
    except TransportError as error:
        raise ProcessError(f"the broker does not answer: {error}") from error

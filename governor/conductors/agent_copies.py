"""Copies of the learned state of an agent in its conductor, for checkpoints."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from governor.episodes.records.checkpoints import COPY_SECONDS
from governor.episodes.remote import control
from governor.errors import ConductorError
from transport.errors import ConnectionLost, ServiceNotFound, WorkerLost

if TYPE_CHECKING:
    from pathlib import Path

    from governor.episodes.records.checkpoints import Copy
    from governor.messages.link import Link

AWAY_SECONDS: Final = 60.0
"""Seconds that the agent's conductor may be unavailable, in addition; a conductor whose agent does not answer within
`COPY_SECONDS` is replaced.
"""


def through_conductors(link: Link, uid: str) -> Copy:
    """Copies through the agent's conductor, and waits for one that is unavailable."""

    async def copy(name: str, path: Path) -> None:
        asked = control.encode(control.Copy(path=str(path)))
        deadline = monotonic() + COPY_SECONDS + AWAY_SECONDS
        while True:
            left = max(deadline - monotonic(), 0.1)
            try:
                body = await link.client.request(
                    control.agent_service(uid, name), asked, timeout=left, idempotent=True
                )
            except (ServiceNotFound, WorkerLost, ConnectionLost):
                if monotonic() < deadline:
                    continue
                raise
            answer = control.decode_answer(body[0])
            if isinstance(answer, control.Failed):
                raise ConductorError(answer.reason)
            return

    return copy

"""The broker's process, kept alive: its sentinel tells of its death, its answers that it is more than alive, its socket
files that new clients find it.

It is asked through the private socket, where there is one: a client that floods the public one holds up the others there, which
is no reason to take the broker from the runs.

Workers register again and clients send idempotent requests again by themselves, so a restart delays a run and changes
nothing of it. One that dies `MOST_DEATHS` times in a row is the end of `run`, with the story.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.errors import FilesRemoved, ProcessError
from governor.messages import SERVICE
from governor.processes import process
from governor.processes.backoff import RestartPolicy
from governor.processes.kill_ladder import GracePeriods, terminate
from governor.processes.silence import BEAT_SECONDS, SilenceTimer
from governor.runs.file_watch import Files
from transport import endpoints
from transport.access import Access
from transport.broker import encode_settings
from transport.client import Client
from transport.errors import TransportError

if TYPE_CHECKING:
    from pathlib import Path

    from governor.processes.process import ChildProcess
    from transport.access import Secret

FIRST_BACK_OFF: Final = 0.05
BACK_OFF_LIMIT: Final = 5.0
STEADY_SECONDS: Final = 30.0
MOST_DEATHS: Final = 8
SILENT_SECONDS: Final = 5.0
"""Without an answer it is taken for dead, whatever it is at; conductors wait twice as long for a command to be taken."""
ANSWER_SECONDS: Final = 10.0
"""For the first answer of all."""
ASK_SECONDS: Final = 60.0
"""The deadline of a question, which our own silence may use up."""
AT_ONCE: Final = GracePeriods(ask=0.0, terminate=0.0, kill=5.0)
IN_ORDER: Final = GracePeriods(ask=0.0, terminate=2.0, kill=5.0)

log = logs.get_logger()


def access_of(secret: Secret) -> Access:
    """Executors reach the daemon alone; it and the conductors of a run alone can have the names that are theirs."""
    return Access(
        public=frozenset({SERVICE.encode()}),
        reserved=frozenset({b"governor", b"run"}),
        scoped=frozenset({b"conductor", b"environment", b"agent"}),
        secret=secret,
    )


class BrokerProcess:
    """`run` keeps the broker alive until it is cancelled; then it has been brought down when `run` returns."""

    def __init__(
        self,
        *,
        client_endpoint: str,
        worker_endpoint: str,
        private_endpoint: str | None = None,
        client_group: str | None = None,
        access: Access | None = None,
        silence: float = SILENT_SECONDS,
        most_deaths: int = MOST_DEATHS,
    ) -> None:
        self._endpoint = private_endpoint or client_endpoint
        self._payload = encode_settings(
            client_endpoint=client_endpoint,
            worker_endpoint=worker_endpoint,
            private_endpoint=private_endpoint,
            client_group=client_group,
            access=access,
        )
        self._silence = silence
        self._most_deaths = most_deaths
        shared = client_endpoint if client_group is not None else None
        self._sockets = {
            path: 0o660 if endpoint == shared else 0o600
            for endpoint in (client_endpoint, worker_endpoint, private_endpoint)
            if endpoint is not None and (path := endpoints.parse(endpoint).path) is not None
        }
        """With the modes that the broker gives them."""
        self._removed = ""
        self.restarts = 0
        self.pid: int | None = None

    async def run(self) -> None:
        """Raises ProcessError when the broker cannot be kept alive, FilesRemoved when that is for want of its sockets."""
        budget, removals = (
            RestartPolicy(
                most=self._most_deaths, steady=STEADY_SECONDS, first=FIRST_BACK_OFF, longest=BACK_OFF_LIMIT
            )
            for _ in range(2)
        )
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            how = await self._live()
            # A broker that answers each time goes on, however often its sockets are removed.
            counted = budget if how else removals
            counted.died(how, lived=loop.time() - begun)
            if budget.used_up and self._removed:
                raise FilesRemoved(
                    f"sockets were removed while in use and can't be bound again ({self._removed}): the broker "
                    f"{budget.story}; remove what lies in their place, then start the daemon again"
                )
            if budget.used_up:
                raise ProcessError(f"the broker {budget.story}")
            self.restarts += 1
            log.info("broker.restarting", restart_in=counted.back_off)
            await asyncio.sleep(counted.back_off)

    async def _live(self) -> str:
        """From one start to how it died, or why there was none; empty where it was brought down for want of its sockets."""
        try:
            child = await process.start(name="broker", target="transport.broker:main", payload=self._payload)
        except ProcessError as error:
            log.warning("broker.not_started", reason=str(error))
            return f"not started ({error})"
        self.pid = child.pid
        try:
            return await self._outlive(child)
        except asyncio.CancelledError:
            await terminate(child, rungs=IN_ORDER)
            raise

    async def _outlive(self, child: ChildProcess) -> str:
        exited = asyncio.create_task(child.wait(), name="broker.exit")
        beats = asyncio.create_task(self._beat(), name="broker.beat")
        try:
            await asyncio.wait({exited, beats}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                log.warning("broker.exited", pid=child.pid, exit_code=exited.result())
                return f"exit code {exited.result()}"
            match beats.result():
                case float(seconds):
                    log.error("broker.silent", pid=child.pid, seconds=round(seconds, 1))
                    await terminate(child, rungs=AT_ONCE)
                    return f"silent for {seconds:.0f} s"
                case removed:
                    self._removed = ", ".join(map(str, removed))
                    log.error("broker.sockets_removed", pid=child.pid, sockets=self._removed)
                    await terminate(child, rungs=IN_ORDER)
                    return ""
        finally:
            for task in (exited, beats):
                task.cancel()
            await asyncio.wait({exited, beats})

    def _answers(self) -> None:
        if self._removed:
            log.info("broker.sockets_bound", sockets=self._removed)
            self._removed = ""

    async def _beat(self) -> float | list[Path]:
        """Returns when the broker has been silent for too long, with the seconds; or when sockets of it are gone: its
        clients go on, and no new one comes.
        """
        loop = asyncio.get_running_loop()
        patience = max(self._silence, ANSWER_SECONDS)
        sockets: Files | None = None
        modes = dict(self._sockets)
        client = Client(self._endpoint)
        try:
            while True:
                asked = asyncio.create_task(_ask(client), name="broker.ask")
                silence = SilenceTimer(loop.time())
                try:
                    while not (await asyncio.wait({asked}, timeout=BEAT_SECONDS))[0]:
                        if silence.passed(loop.time()) >= patience:
                            self._removed = (
                                ", ".join(map(str, self._gone())) or self._removed
                            )  # why nobody reached it
                            return silence.seconds
                    if asked.exception() is None and sockets is None:
                        patience = self._silence
                        sockets = Files(*self._sockets)
                        folders = Files(*(path.parent for path in self._sockets))
                        self._answers()
                finally:
                    asked.cancel()
                    await asyncio.wait({asked})
                await asyncio.sleep(BEAT_SECONDS)
                # Without its folder it can't come back: whoever watches that one decides. What had been replaced by the
                # first answer is no socket.
                if (
                    sockets is not None
                    and (removed := sockets.removed() or self._gone())
                    and not folders.removed()
                ):
                    return removed
                if sockets is not None:
                    _tell_modes(modes)
        finally:
            await client.aclose()

    def _gone(self) -> list[Path]:
        """Where no socket lies; none where the disk does not tell."""
        with contextlib.suppress(OSError):
            return [path for path in self._sockets if not path.is_socket()]
        return []


def _tell_modes(modes: dict[Path, int]) -> None:
    """Of the sockets that have another mode than this; it is noted here then."""
    for path, was in modes.items():
        with contextlib.suppress(OSError):
            modes[path] = stat.S_IMODE(path.lstat().st_mode)
            if modes[path] != was:
                log.warning(
                    "broker.socket_mode_changed",
                    socket=str(path),
                    mode=f"{modes[path]:04o}",
                    was=f"{was:04o}",
                )


async def _ask(client: Client) -> None:
    await client.request("mmi.service", b"governor", timeout=ASK_SECONDS, idempotent=True)


async def answering(client: Client) -> None:
    """Returns when the broker answers. Raises ProcessError when it does not in ten seconds."""
    try:
        await client.request("mmi.service", b"governor", timeout=ANSWER_SECONDS, idempotent=True)
    except TransportError as error:
        raise ProcessError(f"the broker does not answer: {error}") from error

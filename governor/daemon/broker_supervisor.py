"""Keeps the broker's process alive: watches its sentinel for its exit, pings it, and checks that its socket files
exist.

Pings use the private socket, where there is one: a client that floods the public socket delays the others there,
which is no reason to restart the broker.

Workers register again and clients repeat idempotent requests by themselves, so a restart delays a run and changes
nothing else. After `MOST_DEATHS` consecutive exits `run` ends with an error that lists them.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from governor import logs
from governor.daemon.broker_process import TARGET as BROKER
from governor.daemon.broker_process import BrokerOrder
from governor.errors import FilesRemoved, ProcessError
from governor.files import WatchedFiles
from governor.messages import SERVICE
from governor.processes import process
from governor.processes.kill_ladder import GracePeriods, terminate
from governor.processes.raw_output import RawOutput
from governor.processes.restart_policy import RestartPolicy
from governor.processes.silence import TICK_SECONDS, SilenceTimer
from transport import endpoints
from transport.access import Access
from transport.broker import BrokerSettings
from transport.client import Client
from transport.errors import TransportError

if TYPE_CHECKING:
    from governor.config import Config
    from governor.logs import LogFormat
    from governor.processes.process import ChildProcess
    from transport.access import Secret
    from transport.network.curve import Member, NetworkSettings

FIRST_BACK_OFF: Final = 0.05
BACK_OFF_LIMIT: Final = 5.0
STEADY_SECONDS: Final = 30.0
MOST_DEATHS: Final = 8
SILENT_SECONDS: Final = 5.0
"""A broker without an answer for so long is replaced; conductors wait twice as long for a command to be accepted."""
ANSWER_SECONDS: Final = 10.0
"""Seconds for the first answer."""
ASK_SECONDS: Final = 60.0
"""The deadline of a ping; time during which the daemon itself was stopped is part of it."""
AT_ONCE: Final = GracePeriods(ask=0.0, terminate=0.0, kill=5.0)
IN_ORDER: Final = GracePeriods(ask=0.0, terminate=2.0, kill=5.0)

log = logs.get_logger()


def access_of(secret: Secret) -> Access:
    """Executors reach only the daemon; only the daemon and the conductors of a run can register their own names."""
    return Access(
        public=frozenset({SERVICE.encode()}),
        reserved=frozenset({b"governor", b"run"}),
        scoped=frozenset({b"conductor", b"environment", b"agent"}),
        secret=secret,
        stamped=frozenset({SERVICE.encode()}),
    )


class BrokerProcess:
    """`run` keeps the broker alive until it is cancelled, and stops the broker before it returns."""

    def __init__(
        self, settings: BrokerSettings, *, log_format: LogFormat = "json", log_level: str = "info"
    ) -> None:
        self._settings = settings
        self._endpoint = settings.private_endpoint or settings.client_endpoint
        place = endpoints.parse(self._endpoint).path
        folder = Path(tempfile.gettempdir()) if place is None else place.parent
        self._raw_output = RawOutput(folder / "broker.output", event="broker.log")
        self._log_format, self._log_level = log_format, log_level
        shared = settings.client_endpoint if settings.client_group is not None else None
        self._sockets = {
            path: 0o660 if endpoint == shared else 0o600
            for endpoint in (settings.client_endpoint, settings.worker_endpoint, settings.private_endpoint)
            if endpoint is not None and (path := endpoints.parse(endpoint).path) is not None
        }
        """The sockets, with the modes that the broker gives them."""
        self._removed = ""
        self.restarts = 0
        self.pid: int | None = None

    async def run(self) -> None:
        """Raises ProcessError when the broker cannot be kept alive, FilesRemoved when its removed sockets are the
        cause.
        """
        exits, removals = (
            RestartPolicy(
                most=MOST_DEATHS, steady=STEADY_SECONDS, first=FIRST_BACK_OFF, longest=BACK_OFF_LIMIT
            )
            for _ in range(2)
        )
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            how = await self._run_once()
            # A broker that answers each time is restarted without limit, however often its sockets are removed.
            counted = exits if how else removals
            counted.exited(how, lived=loop.time() - begun)
            if exits.exhausted and self._removed:
                raise FilesRemoved(
                    f"sockets were removed while in use and can't be bound again ({self._removed}): the broker "
                    f"{exits.summary}; remove what lies in their place, then start the daemon again"
                )
            if exits.exhausted:
                raise ProcessError(f"the broker {exits.summary}")
            self.restarts += 1
            log.warning(
                "broker.restarting", restart_in=counted.delay, reason=how or "its sockets were removed"
            )
            await asyncio.sleep(counted.delay)

    def _order(self) -> bytes:
        return BrokerOrder(
            settings=self._settings.encode(),
            raw_output=str(self._raw_output.path),
            log_format=self._log_format,
            log_level=self._log_level,
        ).encode()

    async def admit(self, members: tuple[Member, ...]) -> bool:
        """Has other keys count, now and after a restart; returns whether they are others."""
        settings = self._settings
        if settings.network is None or settings.network.members == members or settings.access.secret is None:
            return False
        network = msgspec.structs.replace(settings.network, members=members)
        self._settings = msgspec.structs.replace(settings, network=network)
        body = settings.access.secret.value, msgspec.msgpack.encode(members)
        async with Client(self._endpoint) as client:
            with contextlib.suppress(TransportError):  # a broker that does not answer is replaced
                await client.request("mmi.members", *body, timeout=ANSWER_SECONDS, idempotent=True)
        return True

    async def _run_once(self) -> str:
        """Starts the broker and waits; returns how it exited or why it did not start, empty if it was stopped because
        its sockets were removed.
        """
        try:
            child = await process.start(name="broker", target=BROKER, payload=self._order())
        except ProcessError as error:
            log.warning("broker.not_started", reason=str(error))
            return f"not started ({error})"
        self.pid = child.pid
        try:
            return await self._watch(child)
        except asyncio.CancelledError:
            await terminate(child, None, IN_ORDER)
            raise
        finally:
            self._raw_output.log_new(pid=child.pid)

    async def _watch(self, child: ChildProcess) -> str:
        exited = asyncio.create_task(child.wait(), name="broker.exit")
        probe = asyncio.create_task(self._probe(), name="broker.probe")
        try:
            await asyncio.wait({exited, probe}, return_when=asyncio.FIRST_COMPLETED)
            if (code := child.exit_code) is not None:  # also when its sockets were missed at the same time
                log.warning("broker.exited", pid=child.pid, exit_code=code)
                return f"exit code {code}"
            match probe.result():
                case float(seconds):
                    log.error("broker.silent", pid=child.pid, seconds=round(seconds, 1))
                    await terminate(child, None, AT_ONCE)
                    return f"silent for {seconds:.0f} s"
                case removed:
                    self._removed = ", ".join(map(str, removed))
                    log.error("broker.sockets_removed", pid=child.pid, sockets=self._removed)
                    await terminate(child, None, IN_ORDER)
                    return ""
        finally:
            for task in (exited, probe):
                task.cancel()
            await asyncio.wait({exited, probe})

    def _sockets_restored(self) -> None:
        if self._removed:
            log.info("broker.sockets_bound", sockets=self._removed)
            self._removed = ""

    async def _probe(self) -> float | list[Path]:
        """Returns the seconds when the broker has been silent for too long, or the sockets that were removed:
        existing clients continue, new ones can't connect.
        """
        loop = asyncio.get_running_loop()
        silence_limit = max(SILENT_SECONDS, ANSWER_SECONDS)
        sockets: WatchedFiles | None = None
        modes = dict(self._sockets)
        client = Client(self._endpoint)
        try:
            while True:
                asked = asyncio.create_task(_ping(client), name="broker.ping")
                silence = SilenceTimer(loop.time())
                try:
                    while not (await asyncio.wait({asked}, timeout=TICK_SECONDS))[0]:
                        if silence.tick(loop.time()) >= silence_limit:
                            self._removed = (
                                ", ".join(map(str, self._missing_sockets())) or self._removed
                            )  # the reason for the silence
                            return silence.seconds
                    if asked.exception() is None and sockets is None:
                        silence_limit = SILENT_SECONDS
                        sockets = WatchedFiles(*self._sockets)
                        folders = WatchedFiles(*(path.parent for path in self._sockets))
                        self._sockets_restored()
                finally:
                    asked.cancel()
                    await asyncio.wait({asked})
                await asyncio.sleep(TICK_SECONDS)
                self._raw_output.log_new(pid=self.pid)
                # Without its folder it can't come back; `FileWatch` handles that. A path that had been replaced before the
                # first answer is not a socket.
                if (
                    sockets is not None
                    and (removed := sockets.removed() or self._missing_sockets())
                    and not folders.removed()
                ):
                    return removed
                if sockets is not None:
                    _log_changed_modes(modes)
        finally:
            await client.aclose()

    def _missing_sockets(self) -> list[Path]:
        """Paths without a socket; none if the disk can't be read."""
        with contextlib.suppress(OSError):
            return [path for path in self._sockets if not path.is_socket()]
        return []


def _log_changed_modes(modes: dict[Path, int]) -> None:
    """Logs the sockets whose mode changed since the last call; updates `modes`."""
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


async def _ping(client: Client) -> None:
    await client.request("mmi.service", b"governor", timeout=ASK_SECONDS, idempotent=True)


def broker_of(config: Config, secret: Secret, network: NetworkSettings | None = None) -> BrokerProcess:
    """The broker of a daemon."""
    settings = BrokerSettings(
        client_endpoint=config.client_endpoint,
        worker_endpoint=config.worker_endpoint,
        private_endpoint=config.private_endpoint,
        client_group=config.socket_group,
        access=access_of(secret),
        network=network,
    )
    log_format = config.log_format or logs.choose_format()
    return BrokerProcess(settings, log_format=log_format, log_level=config.log_level)


async def wait_until_answering(client: Client) -> None:
    """Returns when the broker answers. Raises ProcessError when it does not within ten seconds."""
    try:
        await client.request("mmi.service", b"governor", timeout=ANSWER_SECONDS, idempotent=True)
    except TransportError as error:
        raise ProcessError(f"the broker does not answer: {error}") from error

"""A process outside the daemon that sends messages in the name of a part of it changes nothing, on any socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import signal
import sqlite3
import stat
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from governor.messages import (
    SERVICE,
    Done,
    EpisodeEnded,
    EpisodeRecord,
    PartEndedReport,
    Report,
    Shutdown,
    conductor_service,
    decode_acknowledged,
    decode_command_reply,
    encode,
    run_service,
)
from tests.support.daemon import serve_with_known_secret
from transport.access import Secret
from transport.client import Client
from transport.errors import RequestNotPermitted
from transport.worker import Worker

pytestmark = pytest.mark.system

PROGRAM = Path(serve_with_known_secret.__file__)
SECRET = serve_with_known_secret.SECRET
EPISODES = 600
AHEAD = 1_000_000
"""A sequence number that no real report reaches: a report with it is applied if it is accepted."""


@dataclasses.dataclass
class Forger:
    """Sends forged messages through clients of the sockets that it can reach, with these credentials at the private one."""

    public: Client
    private: Client

    async def send(self, service: str, message: bytes) -> list[bytes]:
        """Returns the answer; of the private socket if the public one has no route."""
        with pytest.raises(RequestNotPermitted):
            await self.public.request(service, message, SECRET.value, timeout=30)
        wrong = (), (b"",), (SECRET.value,), (Secret.new().value,), (SECRET.of(b"other").value,)
        answers = [await self.private.request(service, message, *shown, timeout=30) for shown in wrong]
        return [answer for [answer] in answers]


@pytest.fixture
async def forger(instance):
    sockets = (f"ipc://{instance.runtime}/{name}.sock" for name in ("broker", "private"))
    async with contextlib.AsyncExitStack() as stack:
        yield Forger(*[await stack.enter_async_context(Client(socket)) for socket in sockets])


@contextlib.asynccontextmanager
async def at_work(tree, walk):
    """The uid of a run that cannot end meanwhile, because its agent sleeps until this context ends."""
    folder = tree.instance.folder
    uid = await tree.executor.submit(walk(entry="user_code:Sleeps", episodes=EPISODES), folder=folder)
    await tree.until(uid, "phase.started")
    yield uid
    (folder / "awake").touch()


@pytest.fixture
def known(instance):
    """An instance whose daemon has the known secret."""
    outside = instance.arguments

    def arguments(*more: str) -> list[str]:
        _, _, _, *rest = outside(*more)
        return [sys.executable, str(PROGRAM), *rest]

    instance.arguments = arguments
    return instance


def forged_end(conductor: str = "simulation") -> bytes:
    record = EpisodeRecord(
        index=EPISODES + 7, worker=0, seed=1, outcome="terminated", value=1e9, steps=1, seconds=0.1
    )
    end = PartEndedReport(phase=0, part="simulation", end="until", metrics={"return_mean": 1e9})
    events = (EpisodeEnded(phase=0, episode=record), end)
    return encode(Report(conductor=conductor, incarnation=1, seq=AHEAD, events=events))


async def assert_own_record(tree, uid, *, deaths=()):
    """The run ends with the record of its own conductors alone."""
    events, result = await tree.end(uid)
    assert result.outcome == "finished", result.reason
    played = Counter(e.data["episode"]["index"] for e in events if e.kind == "episode.ended")
    assert played == Counter(range(EPISODES))
    assert result.phases[0].metrics["return_mean"] <= 1.0
    exited = [e.data for e in events if e.kind == "conductor.exited" and not e.data["expected"]]
    assert [each["conductor"] for each in exited] == list(deaths)


async def test_a_forged_report_does_not_end_a_run_nor_a_forged_shutdown_a_conductor(known, walk, forger):
    async with known.serve() as tree:
        async with at_work(tree, walk) as uid:
            for answer in await forger.send(run_service(uid), forged_end()):
                assert decode_acknowledged(answer).code == "not_permitted"
            for conductor in ("simulation", "agent.walker", "environment.lake"):
                service = conductor_service(uid, conductor, 1)
                for answer in await forger.send(service, encode(Shutdown(grace=0.0))):
                    assert decode_command_reply(answer).code == "not_permitted"
        await assert_own_record(tree, uid)
    log = (known.folder / "log").read_text()
    assert '"message.not_permitted"' in log
    assert "broker.not_permitted" in log


@pytest.mark.long
async def test_a_message_with_the_secret_of_the_run_is_accepted(known, walk, forger):
    """Shows that the other tests are refused only because the secret is missing."""
    async with known.serve() as tree:
        async with at_work(tree, walk) as uid:
            shown = SECRET.of(uid.encode()).value
            service = conductor_service(uid, "simulation", 1)
            command = encode(Shutdown(grace=0.0))
            [answer] = await forger.private.request(service, command, shown, timeout=30)
            assert decode_command_reply(answer) == Done()
            await tree.until(uid, "conductor.started", conductor="simulation", incarnation=2)
            for dead in ("simulation", "unknown"):
                [answer] = await forger.private.request(run_service(uid), forged_end(dead), shown, timeout=30)
                assert decode_acknowledged(answer).code == "fenced", "it is dead, or was never started"
        await assert_own_record(tree, uid, deaths=["simulation"])


async def test_a_worker_with_a_stolen_service_name_receives_nothing_even_from_a_restarted_broker(
    instance, walk
):
    stolen = []

    async def steal(request):
        stolen.append(bytes(request.body[0]))
        return [b""]

    async with instance.serve() as tree, contextlib.AsyncExitStack() as thieves:
        async with at_work(tree, walk) as uid:
            names = (
                SERVICE,
                run_service(uid),
                conductor_service(uid, "simulation", 1),
                f"agent.{uid}.walker",
            )
            for name in names:
                for secret in (None, Secret.new()):
                    thief = Worker(
                        f"ipc://{instance.runtime}/workers.sock", name, steal, credit=64, secret=secret
                    )
                    await thieves.enter_async_context(thief)
            tree.broker.kill()
            async with asyncio.timeout(60):
                for _ in range(50):
                    [run] = (await tree.executor.status(uid)).runs
                    assert run.uid == uid
        await assert_own_record(tree, uid)
    assert stolen == []


async def test_clients_reach_the_public_socket_only_and_the_owner_alone_reaches_the_others(instance, walk):
    async with instance.serve() as tree:
        async with at_work(tree, walk) as uid:
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in instance.runtime.iterdir()}
        assert {modes[f"{name}.sock"] for name in ("broker", "private", "workers")} == {0o600}
        assert modes[uid] == 0o700, "the steps' sockets are below"
        assert stat.S_IMODE(instance.runtime.stat().st_mode) == 0o700
        async with Client(f"ipc://{instance.runtime}/broker.sock") as client:
            assert await client.request("mmi.service", SERVICE.encode(), timeout=10) == [b"200"]


def forms(secret: bytes) -> list[bytes]:
    return [secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="), repr(secret)[2:-1].encode()]


@pytest.mark.long
async def test_no_secret_is_in_the_journal_log_status_arguments_or_environment(known, walk, forger):
    seen: dict[str, bytes] = {}
    async with known.serve("--log-level", "debug") as tree:
        async with at_work(tree, walk) as uid:
            await forger.send(run_service(uid), forged_end())
            for process in [tree.daemon, *tree.daemon.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    seen[f"arguments of {process.pid}"] = "\0".join(process.cmdline()).encode()
                    environ = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)
                    seen[f"environment of {process.pid}"] = environ
            seen["status"] = encode(await tree.executor.status(uid))
            tree.daemon.send_signal(signal.SIGUSR1)  # it logs its states and tasks
        events, result = await tree.end(uid)
        seen |= {"events": repr(events).encode(), "result": repr(result).encode()}
    for path in known.folder.rglob("*"):
        if path.is_file():
            seen[str(path)] = path.read_bytes()
    with contextlib.closing(sqlite3.connect(known.folder / "s" / "governor.db")) as journal:
        seen["journal"] = "\n".join(journal.iterdump()).encode()
    assert len(seen) > 20
    for secret in (SECRET.value, SECRET.of(uid.encode()).value):
        assert [where for where, what in seen.items() if any(form in what for form in forms(secret))] == []

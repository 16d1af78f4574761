"""A test harness: a broker, and the three conductors around one run, in this process or in their own."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from governor.conductors.agent import AgentConductor
from governor.conductors.environment import EnvironmentConductor
from governor.conductors.simulation import SimulationController
from governor.episodes.records import state_file
from governor.messages import Done, EpisodeEnded, PartEndedReport, StartSimulation, encode
from governor.messages.link import RecordingLink
from governor.output import attribution, spool
from governor.processes import process as processes
from tests.support.conductor_specs import conductor_spec
from tests.support.figures import with_done
from tests.support.in_process_commands import WORLDS, inside, vector
from tests.support.language_models.text_phases import talking
from tests.support.language_models.text_world import TextWorld
from transport.access import Secret
from transport.broker import Broker, BrokerSettings
from transport.client import Client

HERE = Path(__file__).parent
SECRET = Secret.new()
CLASSES = {"environment": EnvironmentConductor, "agent": AgentConductor, "simulation": SimulationController}


class Harness:
    def __init__(self, folder, client):
        self.folder = folder
        self.client = client
        self.failures = {}
        self.links = {}
        self.conductors = {}
        self._stack = contextlib.AsyncExitStack()

    def spec(self, name, *, incarnation=1, seed=7, **settings):
        return conductor_spec(
            self.folder,
            uid="u1",
            name=name,
            kind=name.partition(".")[0],
            incarnation=incarnation,
            client_endpoint=f"ipc://{self.folder}/c",
            worker_endpoint=f"ipc://{self.folder}/w",
            secret=SECRET,
            run_folder=str(self.folder / "run"),
            import_folder=WORLDS,
            seed=seed,
            settings=settings,
        )

    async def start(self, name, *, flow="CONTINUE", **more):
        spec = self.spec(name, **more)
        link = self.links[name] = RecordingLink(self.client, flow=flow)
        conductor = self.conductors[name] = CLASSES[spec.kind](spec=spec, link=link)
        self.failures[name] = conductor.failed
        self._stack.push_async_callback(conductor.close)
        await conductor.prepare()
        return conductor

    def spawn(self, name, **more):
        """A conductor in a process of its own, whose reports are not read."""
        path = self.folder / f"{name}.spec"
        path.write_bytes(encode(self.spec(name, **more)))
        code = (
            "import sys, asyncio, pathlib; from governor.conductors.conductor import main;"
            "sys.exit(asyncio.run(main(pathlib.Path(sys.argv[1]).read_bytes())))"
        )
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=HERE.parents[2])

        def end():
            child.kill()
            child.wait()

        self._stack.callback(end)
        return child

    async def pair(
        self,
        *,
        entry="walk_world:Walk",
        pool=1,
        vector=1,
        agent="walk_world:Agent",
        agent_params=None,
        wrappers=(),
        **params,
    ):
        wrapped = [each.model_dump() for each in wrappers]
        await self.start(
            "environment.lake", entry=entry, params=params, wrappers=wrapped, pool=pool, vector=vector
        )
        await self.start("agent.walker", entry=agent, params=agent_params or {})

    async def stage(self, transport, *, pool=1, size=4, **made):
        """What a command says more to play with this transport; "vector" and "rounds" are vectors of `size`, in process and
        through conductors; "text" is a language model in environments behind a server, with the returns of `walk_world:Walk`.
        Conductors are started where there are any; `made` is as in `pair`.
        """
        if transport == "text":
            world = await self._stack.enter_async_context(TextWorld())
            world.length = 5
            return talking(world.llm, entry=world.url, environment={"name": "walk"})
        if transport in {"in_process", "vector"}:
            return vector(size, **made) if transport == "vector" else inside(**made)
        more = {"vector": size} if transport == "rounds" else {}
        await self.pair(pool=pool, **more, **made)
        return more

    async def apart(self, command, *, pool=1, without=""):
        """A command whose phase is played in process, for conductors, which are started, all `without` one."""
        made, agents = command["made_environment"], command["made_agents"]
        if without != "environment.lake":
            settings = {"entry": made.entry, "params": made.params, "pool": pool, "vector": made.vector}
            await self.start("environment.lake", **settings)
        for name, agent in zip(command["agents"], agents, strict=True):
            if without != f"agent.{name}":
                await self.start(f"agent.{name}", entry=agent.entry, params=agent.params)
        return {name: command[name] for name in ("agents", "players")}

    def command(self, *, done=(), **more):
        base = {
            "phase": 0, "name": "train", "mode": "train", "environment": "lake", "agents": ("walker",), "episodes": 3,
            "workers": 1, "max_steps": None, "episode_timeout": None, "seed": 7,
        }  # fmt: skip
        return with_done(StartSimulation(**{**base, **more}), done)

    async def play(self, *, flow="CONTINUE", incarnation=1, seconds=60, **more):
        """Starts a controller, plays the phase; its episodes in the order of their end, and the part's end."""
        controller = await self.start("simulation", flow=flow, incarnation=incarnation)
        assert await controller.perform(self.command(**more)) == Done()
        return await self.end(seconds=seconds)

    async def end(self, *, seconds=60):
        link = self.links["simulation"]
        ended = await asyncio.wait_for(link.next(PartEndedReport), seconds)
        return [event.episode for event in link.events if isinstance(event, EpisodeEnded)], ended

    def watch_leases(self):
        """An event that is set with the next lease."""
        pool, leased = self.conductors["environment.lake"].pool, asyncio.Event()
        acquire = pool.acquire

        async def acquire_and_notify(wanted):
            answer = await acquire(wanted)
            leased.set()
            return answer

        pool.acquire = acquire_and_notify
        return leased

    def lines(self, phase="train"):
        return [
            json.loads(line)
            for line in (self.folder / "run/episodes" / f"{phase}.jsonl").read_text().splitlines()
        ]

    def state(self):
        return state_file.load(self.folder / "run/agents/walker.state")


def socket_files(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_socket())


@pytest.fixture(scope="session")
def forkserver():
    """For the processes of environments, of all tests."""
    processes.warm_up()
    yield
    processes.shut_down()


@pytest.fixture
async def harness(forkserver, monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
    with tempfile.TemporaryDirectory(prefix="ep-") as name:
        folder = Path(name)
        (folder / "run").mkdir()
        client, worker = f"ipc://{folder}/c", f"ipc://{folder}/w"
        async with (
            Broker(BrokerSettings(client_endpoint=client, worker_endpoint=worker)),
            Client(client) as asker,
        ):
            made = Harness(folder, asker)
            async with made._stack:
                yield made
        left = socket_files(folder)
        assert left == [], "socket files were left behind"


@pytest.fixture
def process(tmp_path, monkeypatch):
    """What this process does, as if its output was captured."""
    descriptors = tuple(spool.create(tmp_path, "a@1-1", suffix) for suffix in spool.STREAMS)
    monkeypatch.setattr(attribution, "_process", attribution.ProcessAttribution(descriptors, None))
    yield attribution.process_attribution()
    for descriptor in descriptors:
        os.close(descriptor)

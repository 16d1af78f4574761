"""One Ray head, one driver and one set of runners for all tests against real Ray."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from governor.messages import ConductorSpec, PartEndedReport, StartTasks, TaskEnded, TaskSpec
from governor.messages.link import RecordingLink
from governor.tasks.cluster.head import RayHead
from tests.support.conductor_specs import conductor_spec

USER_CODE = Path(__file__).parent / "user_code"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_head():
    folder = Path(tempfile.mkdtemp(prefix="governor-test-"))
    head = RayHead(state_folder=folder, runtime_folder=folder, num_cpus=2)
    yield await head.start()
    await head.stop()
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def harness(ray_head, tmp_path_factory):
    from governor.tasks.cluster.cluster import Cluster

    folder = tmp_path_factory.mktemp("run")
    spec = conductor_spec(folder, import_folder=str(USER_CODE))
    cluster = Cluster(address=ray_head.address, token_path=str(ray_head.token_path), namespace=spec.uid)
    await cluster.connect()
    from governor.tasks.engine import Engine
    from governor.tasks.runners.pool import Runners

    runners = Runners(
        cluster=cluster,
        run=spec.uid,
        run_folder=folder,
        socket_folder=Path(tempfile.mkdtemp(prefix="governor-test-", dir=ray_head.token_path.parent)),
        import_path=[str(USER_CODE)],
    )
    engine = Engine(runners=runners, cluster=cluster, folder=folder, grace=0.2)
    await engine.start()
    yield Harness(spec, cluster, runners, engine, folder)
    await engine.close()
    await cluster.disconnect()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(harness, tmp_path_factory):
    """Runners without an engine."""
    from tests.support.tasks.runner_world import open_world

    async with open_world(harness.cluster, tmp_path_factory.mktemp("run")) as world:
        yield world


@dataclass
class Harness:
    spec: ConductorSpec
    cluster: object
    runners: object
    engine: object
    folder: Path
    phases = itertools.count()

    def phase(self, *tasks, **fields):
        from governor.tasks.phases.task_graph import PhaseTasks

        link = RecordingLink()
        number = next(self.phases)
        command = StartTasks(phase=number, name=f"phase {number}", tasks=tasks, seed=0, **fields)
        work = PhaseTasks(command=command, link=link, engine=self.engine, ray_answers=self.cluster.answers)
        return work, link

    async def run(self, *tasks, seconds=30, **fields):
        """Runs a graph; returns its records by (task, run), and all events."""
        return await self.play(*self.phase(*tasks, **fields), seconds=seconds)

    async def play(self, phase, link, *, results=None, seconds=30):
        """Runs a phase, with the results of what is done."""
        phase.begin(results)
        async with asyncio.timeout(seconds):
            await phase.run()
        return GraphResult(link.events)


@pytest_asyncio.fixture(loop_scope="session")
async def gate():
    from tests.support.tasks.gate import Gate

    async with Gate() as gate:
        yield gate


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pool(harness):
    from governor.tasks import Scheduler
    from tests.support.tasks.scheduling import BASE

    async with Scheduler(BASE) as scheduler:
        yield scheduler


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(pool):
    """The scheduler of the test's own module, as new."""
    from tests.support.tasks.scheduling import configured, leave_nothing

    yield configured(pool)
    await leave_nothing(pool)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def coordinator_pool(harness, ray_head):
    from governor.tasks import RolloutCoordinator
    from tests.support.tasks.scheduling import BASE

    async with RolloutCoordinator(replace(BASE, address=ray_head.address)) as coordinator:
        yield coordinator


@pytest_asyncio.fixture(loop_scope="session")
async def coordinator(coordinator_pool):
    """The coordinator of the test's own module, as new."""
    from tests.support.tasks.scheduling import configure, leave_nothing

    configure(coordinator_pool)
    coordinator_pool.experience_pipeline = None
    yield coordinator_pool
    left = list(coordinator_pool.pending_batches)
    for batch_id in left:
        await coordinator_pool.abort_batch(batch_id, reason="the test is over")
    await leave_nothing(coordinator_pool.scheduler)
    assert not left


class GraphResult:
    def __init__(self, events):
        self.events = events
        ended = [event.record for event in events if isinstance(event, TaskEnded)]
        self.records = {(record.task, record.run): record for record in ended}
        assert len(ended) == len(self.records), "a run ended twice"
        *_, self.end = events
        assert isinstance(self.end, PartEndedReport)

    def __getitem__(self, key):
        return self.records[key if isinstance(key, tuple) else (key, 0)]

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def task():
    def build(name, call, *needs, **fields):
        return TaskSpec(
            id=name, call=f"deeds:{call}" if ":" not in call else call, depends_on=needs, **fields
        )

    return build

"""The task conductor as a process of its own: its answers, its stop, and the loss of Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from governor.conductors.task import TaskConductor
from governor.errors import ConductorError
from governor.messages.link import RecordingLink
from governor.tasks.cluster.head import RayHead
from tests.support.conductor_specs import conductor_spec

PROGRAM = Path(__file__).parent / "task_conductor_process.py"
ROOT = Path(__file__).parents[3]
USER_CODE = ROOT / "tests" / "governor" / "tasks" / "user_code"


@pytest.fixture
async def head(tmp_path):
    head = RayHead(state_folder=tmp_path / "state", runtime_folder=tmp_path / "runtime", num_cpus=1)
    head.where = await head.start()
    yield head
    await head.stop()


class ConductorProcess:
    def __init__(self, process):
        self.process = process

    async def line(self, kind: str, about: str = "") -> dict:
        async with asyncio.timeout(30):
            while line := await self.process.stdout.readline():
                try:
                    line_data = json.loads(line)
                except ValueError:
                    continue
                if line_data["type"] == kind and about in line_data.get("text", ""):
                    return line_data
        raise AssertionError(f"ended before {kind}")


@pytest.fixture
def working_folder(tmp_path):
    """Of a run file, with modules of our names: Ray takes it to its workers."""
    made = tmp_path / "beside"
    made.mkdir()
    for name in ("governor", "states", "transport"):
        (made / f"{name}.py").write_text("raise RuntimeError(__file__)")
    return made


@pytest.fixture
async def conductor(head, tmp_path, working_folder):
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            str(PROGRAM),
            head.where.address,
            str(head.where.token_path),
            str(tmp_path),
            str(USER_CODE),
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=working_folder,
    )
    yield ConductorProcess(process)
    if process.returncode is None:
        process.kill()
        await process.wait()


def runners(head: RayHead) -> list[psutil.Process]:
    children = psutil.Process(head.pid).children(recursive=True)
    return [child for child in children if "Runner.serve" in " ".join(child.cmdline())]


@pytest.mark.ray
async def test_it_answers_stops_and_takes_its_runners_along(head, conductor):
    prepared = await conductor.line("prepared")
    assert prepared["detail"] == {"ray": head.where.address, "nodes": 1, "cpus": 1.0}
    assert prepared["early"] == "conductor"
    [simulation, cycle] = (await conductor.line("refused"))["messages"]
    assert "a task conductor simulates with transport ray, not conductors" in simulation
    assert 'task "a" depends on itself' in cycle
    await conductor.line("TaskStarted", "hung")
    [runner] = runners(head)
    conductor.process.stdin.write(b"stop\n")
    assert "cancelled" in (await conductor.line("TaskEnded"))["text"]
    assert "end='stopped'" in (await conductor.line("PartEndedReport"))["text"]
    assert (await conductor.line("ends"))["phases"] == [2, 3], "each phase ends once"
    assert await conductor.process.wait() == 0
    assert not runner.is_running()


@pytest.mark.ray
async def test_modules_of_the_user_that_have_our_names_are_not_taken_for_ours(conductor):
    await conductor.line("TaskStarted", "hung")


@pytest.mark.ray
@pytest.mark.parametrize("part", ["gcs_server", pytest.param("raylet", marks=pytest.mark.long)])
async def test_the_loss_of_ray_ends_it_within_seconds_with_the_reason(head, conductor, part):
    await conductor.line("TaskStarted", "hung")
    victim = next(p for p in psutil.Process(head.pid).children() if p.name() == part)
    victim.send_signal(signal.SIGKILL)
    began = time.monotonic()
    assert "Ray is lost" in (await conductor.line("failed"))["text"]
    assert await conductor.process.wait() == 1
    assert time.monotonic() - began < 5


@pytest.mark.ray
async def test_a_conductor_killed_outright_leaves_no_runner(head, conductor):
    await conductor.line("TaskStarted", "hung")
    [runner] = runners(head)
    conductor.process.kill()
    async with asyncio.timeout(10):
        handle = os.pidfd_open(runner.pid)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, gone.set)
        await gone.wait()
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "no Ray at 127.0.0.1:1: Connection refused"), ("ray", "no Ray address")],
)
async def test_no_ray_is_one_line(tmp_path, address, reason):
    spec = conductor_spec(tmp_path, settings={"ray": {"address": address, "token_path": None}})
    conductor = TaskConductor(spec=spec, link=RecordingLink())
    with pytest.raises(ConductorError, match=reason):
        await conductor.prepare()
    await conductor.close()

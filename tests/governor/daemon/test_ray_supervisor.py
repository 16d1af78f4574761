"""Ray for the runs: one head for all callers, another one after its exit, and none with an existing cluster."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psutil
import pytest

from governor.config import RayConfig
from governor.daemon import ray_supervisor
from governor.daemon.ray_supervisor import RayService
from governor.errors import ProcessError
from governor.tasks.cluster import liveness


@pytest.fixture
async def service(tmp_path):
    service = RayService(RayConfig(num_cpus=1), state_folder=tmp_path / "s", runtime_folder=tmp_path / "r")
    yield service
    await service.aclose()


def processes(service: RayService) -> list[psutil.Process]:
    head = psutil.Process(service._running.head.pid)
    return [head, *head.children(recursive=True)]


def alive(found: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


async def freeze(service: RayService, part: str) -> psutil.Process:
    """Returns when it is stopped: the signal is there before its threads hear of it."""
    victim = next(each for each in processes(service) if each.name() == part)
    victim.suspend()
    while victim.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110  # nobody but its parent is told
        await asyncio.sleep(0)
    return victim


async def test_an_existing_cluster_is_passed_on_unchanged(tmp_path):
    token = tmp_path / "token"
    config = RayConfig(address="ray.example:6379", token_path=token)
    service = RayService(config, state_folder=tmp_path, runtime_folder=tmp_path)
    assert await service.settings() == {"address": "ray.example:6379", "token_path": str(token)}
    assert str(service) == "cluster at ray.example:6379"
    await service.aclose()
    assert list(tmp_path.iterdir()) == []
    bare = RayService(RayConfig(address="h:1"), state_folder=tmp_path, runtime_folder=tmp_path)
    assert (await bare.settings())["token_path"] is None


@pytest.mark.ray
async def test_all_callers_get_one_head_and_after_its_exit_another(service):
    assert str(service) == "not started"
    first, same = await asyncio.gather(service.settings(), service.settings())
    assert first == same == await service.settings()
    old = processes(service)
    head = service._running.head
    assert str(service) == f"local head at {first['address']} (pid {head.pid})"
    head_died = head.exited()
    old[0].kill()
    async with asyncio.timeout(30):
        await head_died
        second = await service.settings()
    assert second["address"] != first["address"], "the one that had died"
    assert second["token_path"] == first["token_path"]
    assert alive(old) == []
    new = processes(service)
    assert str(service) == f"local head at {second['address']} (pid {new[0].pid})"
    await service.aclose()
    assert alive(new) == []
    assert str(service) == "not started"
    assert [path.name for path in Path(first["token_path"]).parent.parent.glob("r/*")] == []
    await service.aclose()


@pytest.mark.ray
async def test_a_head_that_cannot_start_is_an_error_and_may_be_asked_for_again(tmp_path):
    config = RayConfig.model_construct(num_cpus=-1)
    service = RayService(config, state_folder=tmp_path, runtime_folder=tmp_path)
    for _ in range(2):
        with pytest.raises(ProcessError, match="the Ray head did not start"):
            await service.settings()
        assert str(service) == "not started"
    await service.aclose()


@pytest.mark.long
@pytest.mark.ray
async def test_a_frozen_part_is_a_lost_head_with_or_without_callers(service, monkeypatch):
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 2.0)
    first = await service.settings()
    old = processes(service)
    await freeze(service, "raylet")
    async with asyncio.timeout(60):
        second = await service.settings()
    assert second["address"] != first["address"]
    assert alive(old) == []
    running = service._running
    old = processes(service)
    await freeze(service, "gcs_server")
    async with asyncio.timeout(60):
        await asyncio.wait({running.watch})
    assert alive(old) == []
    assert str(service) == "not started"


@pytest.mark.long
@pytest.mark.ray
async def test_a_part_that_is_frozen_for_a_moment_is_waited_for(service):
    first = await service.settings()
    raylet = await freeze(service, "raylet")
    asked = asyncio.create_task(service.settings())
    done, _ = await asyncio.wait({asked}, timeout=1.5)
    assert not done, "nobody could have answered"
    raylet.resume()
    async with asyncio.timeout(30):
        assert await asked == first


@pytest.mark.long
@pytest.mark.ray
async def test_after_consecutive_exits_the_error_lists_them_until_the_next_attempt_is_due(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(ray_supervisor, "MOST_DEATHS", 2)
    monkeypatch.setattr(ray_supervisor, "TRY_AGAIN_SECONDS", 3600.0)
    service = RayService(RayConfig(num_cpus=1), state_folder=tmp_path / "s", runtime_folder=tmp_path / "r")
    try:
        for _ in range(2):
            await service.settings()
            running = service._running
            next(each for each in processes(service) if each.name() == "gcs_server").kill()
            async with asyncio.timeout(30):
                await asyncio.wait({running.watch})
        told = (
            r"Ray's head died 2 times in a row, each within 30 s: [^;]+ after [\d.]+ s; [^;]+ after [\d.]+ s; "
            r"the next one may be tried in 3\d{3} s"
        )
        with pytest.raises(ProcessError) as caught:
            await service.settings()
        assert re.fullmatch(told, str(caught.value))
        assert str(service).startswith("not started: its head died 2 times in a row")
        monkeypatch.setattr(ray_supervisor, "TRY_AGAIN_SECONDS", 0.0)
        assert await service.settings()
    finally:
        await service.aclose()

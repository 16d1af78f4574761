"""Ray for the runs: one head for all who ask, another when it has died, and none when somebody else keeps a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from governor.config import RayConfig
from governor.errors import ProcessError
from governor.ray_service import RayService


@pytest.fixture
async def service(tmp_path):
    service = RayService(RayConfig(num_cpus=1), state_folder=tmp_path / "s", runtime_folder=tmp_path / "r")
    yield service
    await service.aclose()


def processes(service: RayService) -> list[psutil.Process]:
    head = psutil.Process(service._head.pid)
    return [head, *head.children(recursive=True)]


def alive(found: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


async def test_a_cluster_of_somebody_else_is_told_as_it_is(tmp_path):
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
async def test_all_who_ask_get_one_head_and_after_its_death_another(service):
    assert str(service) == "not started"
    first, same = await asyncio.gather(service.settings(), service.settings())
    assert first == same == await service.settings()
    old = processes(service)
    head = service._head
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
    config = RayConfig(num_cpus=-1)
    service = RayService(config, state_folder=tmp_path, runtime_folder=tmp_path)
    for _ in range(2):
        with pytest.raises(ProcessError, match="the Ray head did not start"):
            await service.settings()
        assert str(service) == "not started"
    await service.aclose()

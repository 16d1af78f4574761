"""Runners on the Ray head of the folder above."""

from __future__ import annotations

import pytest_asyncio

from tests.support.tasks.runner_world import open_world


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(harness, tmp_path_factory):
    async with open_world(harness.cluster, tmp_path_factory.mktemp("run")) as world:
        yield world

"""What tests of several packages use."""

import contextlib
import tempfile
from types import SimpleNamespace

import pytest

from governor.executor import Executor
from governor.journal.journal import Journal
from governor.messages import SERVICE
from transport.broker import Broker, BrokerSettings
from transport.broker_core import BrokerLimits
from transport.worker import Worker


@pytest.fixture
async def journal(tmp_path):
    """An empty one, in `governor.db`."""
    opened = Journal(tmp_path / "governor.db")
    yield opened
    await opened.close()


@pytest.fixture
async def line():
    """`open(**limits)` gives an executor, and its broker; `serve(handler)` is the daemon behind it."""
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ex-", dir="/tmp"))
        client, worker = f"ipc://{folder}/c", f"ipc://{folder}/w"

        def broker(**limits):
            return Broker(
                BrokerSettings(client_endpoint=client, worker_endpoint=worker, limits=BrokerLimits(**limits))
            )

        async def open_one(
            *, seconds=0.5, patience=0.5, awaits_restart=True, service=SERVICE, has_broker=True, **limits
        ):
            if has_broker:
                await stack.enter_async_context(broker(**limits))
            made = Executor(
                client, timeout=seconds, patience=patience, awaits_restart=awaits_restart, service=service
            )
            return await stack.enter_async_context(made)

        def serve(handler, service=SERVICE, **options):
            return Worker(worker, service, handler, **options)

        yield SimpleNamespace(open=open_one, serve=serve, broker=broker)

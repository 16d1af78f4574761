"""Drain, undrain and shutdown of the daemon: on record before they are answered, said once."""

from __future__ import annotations

import pytest

from governor.daemon.draining import Draining
from governor.errors import GovernorError, JournalError
from tests.support.daemon.api_world import RUN, open_api


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        yield opened


def loaded_again(daemon):
    """As a daemon that starts over the same journal."""
    return Draining(daemon.journal, is_idle=lambda: True, end=daemon.ended.append, changed=daemon.dispatch)


async def test_a_drain_is_said_once_and_outlives_the_daemon(daemon):
    executor = daemon.executor
    uid = await executor.submit(RUN)
    found = await executor.drain("a new kernel")
    assert (found.uid, found.changed, found.state) == ("", True, "serving")
    assert not (await executor.drain("again")).changed
    report = await executor.status()
    assert report.state == "drained"
    assert report.runs[0].waits_for == "`governor undrain`, the daemon is drained: a new kernel"
    again = loaded_again(daemon)
    await again.load()
    assert (again.state, again.waits_for) == ("drained", daemon.draining.waits_for)
    assert (await executor.undrain()).changed
    assert not (await executor.undrain()).changed
    again = loaded_again(daemon)
    await again.load()
    assert (again.state, again.waits_for) == ("serving", "")
    assert (await executor.status(uid)).runs[0].waits_for == "a free slot (0 runs before it)"
    last = daemon.journal.last_of_daemon(("daemon.drained",))
    assert (last.data["reason"], last.data["by"]["pid"] > 0) == ("a new kernel", True)


async def test_a_dry_run_changes_nothing(daemon):
    for ask in (daemon.executor.drain, daemon.executor.shutdown):
        found = await ask(dry_run=True)
        assert (found.changed, found.dry_run) == (True, True)
    assert (await daemon.executor.status()).state == "serving"
    assert daemon.journal.last_of_daemon(("daemon.drained", "daemon.shutdown_requested")) is None
    assert daemon.ended == []


async def test_a_drain_that_is_not_on_record_is_none(daemon, monkeypatch):
    async def full(*_, **__):
        raise JournalError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(daemon.journal, "write", full)
        with pytest.raises(GovernorError, match="the disk is full"):
            await daemon.executor.drain()
        with pytest.raises(GovernorError, match="the disk is full"):
            await daemon.executor.shutdown(when_idle=True)
    assert (await daemon.executor.status()).state == "serving"


async def test_a_shutdown_ends_the_daemon_at_once(daemon):
    assert (await daemon.executor.shutdown("the rack moves")).changed
    assert daemon.ended == ["the rack moves"]


async def test_a_shutdown_when_idle_waits_for_the_runs_in_work_and_can_be_taken_back(daemon, monkeypatch):
    monkeypatch.setattr(daemon.draining, "_is_idle", lambda: False)
    executor = daemon.executor
    await executor.submit(RUN)
    assert (await executor.shutdown("tonight", when_idle=True)).changed
    assert not (await executor.shutdown("tonight", when_idle=True)).changed
    report = await executor.status()
    assert report.state == "ending when idle"
    assert report.runs[0].waits_for == "the next start of the daemon, which ends when it is idle: tonight"
    daemon.draining.end_if_idle()
    assert daemon.ended == []
    again = loaded_again(daemon)
    await again.load()
    assert again.state == "serving"  # it is of one process
    assert (await executor.undrain()).changed
    assert (await executor.status()).state == "serving"
    await executor.shutdown("tonight", when_idle=True)
    monkeypatch.setattr(daemon.draining, "_is_idle", lambda: True)
    daemon.draining.end_if_idle()
    assert daemon.ended == ["tonight"]

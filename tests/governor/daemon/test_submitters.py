"""Who submitted a run and who aborted it: on record and in the log, as the kernel has it."""

from __future__ import annotations

import os

import pytest
from structlog.testing import capture_logs

from tests.support.api_world import RUN, open_api

ME = {"uid": os.getuid(), "gid": os.getgid(), "pid": os.getpid()}


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        yield opened


async def test_status_list_and_record_name_who_submitted_a_run(daemon):
    with capture_logs() as lines:
        uid = await daemon.executor.submit(RUN)
    [accepted] = [line for line in lines if line["event"] == "run.accepted"]
    assert accepted["by"] == ME
    [event] = daemon.journal.events(uid)
    assert event.data["by"] == ME
    assert [run.submitted_by for run in (await daemon.executor.status(uid)).runs] == [ME]
    assert [run.submitted_by for run in (await daemon.executor.list()).runs] == [ME]


async def test_an_abort_is_logged_with_who_asked_and_its_result_names_who_submitted(daemon):
    uid = await daemon.executor.submit(RUN)
    with capture_logs() as lines:
        await daemon.executor.abort(uid, "enough")
    asked, ended = [line for line in lines if line["event"] in ("run.abort_requested", "run.ended")]
    assert (asked["by"], asked["reason"], asked["run"]) == (ME, "enough", uid)
    assert (ended["outcome"], ended["reason"], ended["submitted_by"]) == ("aborted", "enough", ME)
    assert (await daemon.executor.result(uid)).submitted_by == ME


async def test_runs_of_older_records_have_nobody(daemon):
    await daemon.journal.write(lambda tx: tx.submit(uid="old", key=None, name="o", spec=RUN, folder="/"))
    assert daemon.journal.submitters(["old", "none"]) == {"old": {}}
    await daemon.journal.write(
        lambda tx: tx._connection.execute("UPDATE events SET data = x'c1' WHERE kind = 'run.accepted'")
    )
    assert daemon.journal.submitters(["old"]) == {}

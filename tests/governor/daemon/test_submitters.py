"""Who submitted a run and who aborted it: on record and in the log, as the kernel has it."""

from __future__ import annotations

import os
import pwd
import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from governor.daemon import senders
from tests.support.daemon.api_world import RUN, open_api
from transport.access import Peer

ME = {"uid": os.getuid(), "gid": os.getgid(), "pid": os.getpid(), "user": pwd.getpwuid(os.getuid()).pw_name}


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


async def test_the_line_of_a_prune_says_who_asked_and_whether_it_only_lists(daemon):
    with capture_logs() as lines:
        await daemon.executor.prune(keep_runs=3, dry_run=True)
    [asked] = [line for line in lines if line["event"] == "prune.requested"]
    assert (asked["by"], asked["keep_runs"], asked["keep_days"], asked["dry_run"]) == (ME, 3, None, True)


async def test_runs_of_older_records_have_nobody(daemon):
    await daemon.journal.write(lambda tx: tx.submit(uid="old", key=None, name="o", spec=RUN, folder="/"))
    assert daemon.journal.submitters(["old", "none"]) == {"old": {}}
    await daemon.journal.write(
        lambda tx: tx._connection.execute("UPDATE events SET data = x'c1' WHERE kind = 'run.accepted'")
    )
    assert daemon.journal.submitters(["old"]) == {}


def request(uid):
    return SimpleNamespace(peer=Peer(uid, 1, 2))


async def test_a_password_database_that_hangs_delays_one_request_for_a_moment(monkeypatch):
    monkeypatch.setattr(senders, "NAME_SECONDS", 0.05)
    answers, asked = threading.Event(), []

    def name(uid):
        asked.append(uid)
        assert answers.wait(60)
        return "ada"

    known = senders.Senders(name)
    for _ in range(3):
        assert await known.of(request(5)) == {"uid": 5, "gid": 1, "pid": 2}
    answers.set()
    await known._names[5]
    assert await known.of(request(5)) == {"uid": 5, "gid": 1, "pid": 2, "user": "ada"}
    assert asked == [5]


def test_a_user_without_a_name_and_one_whose_name_is_no_text(monkeypatch):
    assert senders.user_name(2**31 - 77) == senders.user_name(2**70) == ""
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="a\udcff" * 100))
    assert senders.user_name(1).encode()
    assert len(senders.user_name(1)) <= 10 * senders.NAME_LENGTH


async def test_the_users_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(senders, "MOST", 10)
    known = senders.Senders(str)
    for uid in range(50):
        assert (await known.of(request(uid)))["user"] == str(uid)
    assert len(known._names) <= 10


async def test_a_request_is_answered_where_no_thread_could_ask_and_the_next_one_asks_again():
    answers = [RuntimeError("can't start new thread"), "ada"]

    def name(uid):
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    known = senders.Senders(name)
    assert await known.of(request(5)) == {"uid": 5, "gid": 1, "pid": 2}
    assert await known.of(request(5)) == {"uid": 5, "gid": 1, "pid": 2, "user": "ada"}

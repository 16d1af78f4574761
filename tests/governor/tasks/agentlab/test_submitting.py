"""What is sent to a session by `run_exp.remote` ends alone, and holds nobody up."""

from __future__ import annotations

import errno
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from governor.tasks import SchedulerConfig, run_exp
from governor.tasks.agentlab.session import GraphSession
from tests.support.user_code.experiments import Exp


@pytest.fixture(scope="module", autouse=True)
def _shared(harness):
    yield
    if GraphSession._shared is not None:
        GraphSession._shared.close()


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


MORE = {"name": "a", "timeout": 60, "retries": 0, "resources": {}, "after": ()}


class Large:
    """The disk has no room for it."""

    exp_id = "large"

    def __init__(self):
        self.rows = b"refused" * 10

    def run(self):
        raise AssertionError


def test_an_experiment_that_cannot_be_stored_ends_alone(monkeypatch):
    write = Path.write_bytes

    def refuse(path, pickled):
        if b"refused" * 10 in pickled:
            raise OSError(errno.ENOSPC, "no space", str(path))
        return write(path, pickled)

    session = GraphSession.shared()
    assert run_exp.remote(Exp("warm", "give", 0)).outcome() == 0
    monkeypatch.setattr(Path, "write_bytes", refuse)
    hold = threading.Event()
    session._loop.call_soon_threadsafe(hold.wait)  # all three are sent together
    sent = [run_exp.remote(each) for each in (Exp("a", "give", 1), Large(), Exp("b", "give", 2))]
    hold.set()
    assert [sent[0].outcome(), sent[2].outcome()] == [1, 2]
    assert "it cannot be sent: OSError: [Errno 28] no space: '" in sent[1].outcome().record.error
    until(lambda: not session._references)


class Slow:
    exp_id = "slow"
    pickling, going_on = threading.Event(), threading.Event()

    def run(self):
        return self.exp_id

    def __getstate__(self):
        self.pickling.set()
        self.going_on.wait(60)
        return {}


def test_others_go_on_while_one_is_pickled():
    caller = threading.Thread(target=lambda: run_exp.remote(Slow()), daemon=True)
    caller.start()
    try:
        assert Slow.pickling.wait(60)
        assert run_exp.remote(Exp("a", "give", 1)).future.result(30).value == 1
    finally:
        Slow.going_on.set()
        caller.join(60)


def test_one_that_is_sent_while_its_session_closes_is_refused(monkeypatch):
    from governor.tasks.pickle_packs import PackBuilder

    session = GraphSession(SchedulerConfig(grace=0.2))
    session.open()
    add = PackBuilder.add_object

    def close_first(*given):
        add(*given)
        session.close()

    monkeypatch.setattr(PackBuilder, "add_object", close_first)
    with pytest.raises(RuntimeError, match="the session is closed"):
        session.submit_one(Exp("a"), **MORE)


def test_runners_that_become_ready_later_are_given_back_too(monkeypatch):
    class Engine:
        starting, rests = 2, 0

        def rest(self):
            self.rests += 1

        @property
        def is_starting(self):
            self.starting -= 1
            return self.starting >= 0

    monkeypatch.setattr(sys.modules[GraphSession.__module__], "REST_SECONDS", 0.0)
    session = GraphSession(SchedulerConfig())
    engine = Engine()
    session._driver = SimpleNamespace(engine=engine)
    session._loop.call_soon(session._rest)
    session._loop.call_later(0.2, session._loop.stop)
    session._loop.run_forever()
    session._loop.close()
    assert engine.rests == 3

"""Calls of user functions in a thread of their own."""

import asyncio
import threading

import pytest

from governor.episodes.text.environments.user_calls import CallThread

SECONDS = 20


async def test_a_thread_that_could_not_start_is_started_by_the_next_call(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    thread = CallThread("calls")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await thread.run(lambda: 1)
    assert await asyncio.wait_for(thread.run(lambda: 2), SECONDS) == 2
    thread.close()

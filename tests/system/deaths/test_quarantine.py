"""A conductor that cannot be killed: a tracer of one of its threads prevents the exit.

The run ends, but the slot accepts no new run until the process is gone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

TRACE = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
print(libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(pid):
    """The process cannot exit in this context until the function that it yields is called."""
    threads = [entry.name for entry in Path(f"/proc/{pid}/task").iterdir() if entry.name != str(pid)]
    command = [sys.executable, "-c", TRACE, threads[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        try:
            if tracer.stdout.readline() != "0\n":
                pytest.skip("no tracing is permitted here")
            yield tracer.kill
        finally:
            tracer.kill()


@pytest.mark.long
async def test_a_slot_accepts_no_run_until_the_stuck_process_of_its_last_run_is_gone(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            {**walk(episodes=3000), "deadlines": {"stop": "2s"}}, folder=instance.folder
        )
        await tree.until(uid, "episode.ended")
        pid = await tree.pid_of(uid, "agent.walker")
        with held(pid) as let_go:
            await tree.executor.abort(uid)
            events, result = await tree.end(uid)
            assert result.outcome == "aborted"
            assert events[-1].data["stuck"] == [pid]

            second = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
            report = await tree.executor.status(second)
            [queued] = report.runs
            reason = f"processes that could not be killed (pid {pid}): quarantined until they are gone"
            assert report.quarantined == {"slot-0": reason}
            assert (queued.state, queued.waits_for) == (
                "queued",
                f"a free slot (0 runs before it); slot-0: {reason}",
            )
            [line] = (await tree.executor.explain(second)).lines
            assert str(pid) in line.what

            let_go()
            _, result = await tree.end(second)
        assert result.outcome == "finished", result.reason
        assert (await tree.executor.status()).quarantined == {}

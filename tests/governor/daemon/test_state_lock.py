import contextlib
import os
import signal
import subprocess
import sys

import pytest

from governor.daemon.state_lock import runtime_lock, state_lock
from governor.errors import AlreadyServed, NotPermitted

HOLD = """
import sys, pathlib, time
from governor.daemon import state_lock
with getattr(state_lock, sys.argv[1])(pathlib.Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def held_by_another(lock, folder):
    """Another process holds the lock; it is killed at the end."""
    command = [sys.executable, "-c", HOLD, lock, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        yield holder
        os.kill(holder.pid, signal.SIGKILL)


def test_one_runtime_folder_for_one_daemon_and_the_lock_leaves_nothing_in_it(tmp_path):
    with held_by_another("runtime_lock", tmp_path):
        with (
            pytest.raises(AlreadyServed, match="the runtime directory") as caught,
            runtime_lock(tmp_path),
        ):
            pass
        assert caught.value.exit_code == 75
    with runtime_lock(tmp_path):
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotPermitted), runtime_lock(tmp_path / "absent"):
        pass


def test_one_holder_at_a_time_and_the_next_one_after_a_kill(tmp_path):
    with held_by_another("state_lock", tmp_path) as holder:
        with pytest.raises(AlreadyServed) as caught, state_lock(tmp_path):
            pass
        assert (caught.value.pid, caught.value.exit_code) == (holder.pid, 75)
    with state_lock(tmp_path):
        assert (tmp_path / "governor.lock").read_text() == f"{os.getpid()}\n"

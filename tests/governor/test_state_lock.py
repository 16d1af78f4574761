import os
import signal
import subprocess
import sys

import pytest

from governor.errors import AlreadyServed
from governor.state_lock import StateLock

HOLD = """
import sys, pathlib, time
from governor.state_lock import StateLock
with StateLock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_holder_at_a_time_and_the_next_one_after_a_kill(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(AlreadyServed) as caught, StateLock(tmp_path):
        pass
    assert (caught.value.pid, caught.value.exit_code) == (holder.pid, 75)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with StateLock(tmp_path):
        assert (tmp_path / "governor.lock").read_text() == f"{os.getpid()}\n"

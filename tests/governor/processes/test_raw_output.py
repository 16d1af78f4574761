import json
import os
import subprocess
import sys

from structlog.testing import capture_logs

from governor.processes.raw_output import READ_LIMIT, RawOutput

PROGRAM = """
import ctypes, os, sys
from governor import logs
from governor.processes.raw_output import redirected, redirection
with redirection(sys.argv[1]):
    os.write(1, b"imported\\n")
    print("buffered")
os.write(1, b"as before\\n")
stream = redirected(sys.argv[1])
logs.configure(log_format="json", stream=stream)
logs.get_logger().info("a.line")
ctypes.CDLL(None).puts(b"of C")
ctypes.CDLL(None).fflush(None)
os.abort()
"""


def test_raw_text_of_a_process_is_lines_of_the_log_and_its_own_lines_are_not(tmp_path):
    output = RawOutput(tmp_path / "output", event="broker.log")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, str(output.path)],
        capture_output=True,
        check=False,
    )
    with capture_logs() as lines:
        told = output.log_new(pid=7)
    assert done.stdout == b"as before\n"
    assert json.loads(done.stderr)["event"] == "a.line"
    assert told[:3] == ["imported", "buffered", "of C"]
    assert "Fatal Python error: Aborted" in told  # what the interpreter itself says at its end
    assert lines[2] == {"event": "broker.log", "log_level": "warning", "text": "of C", "pid": 7}
    assert output.log_new() == []


def test_what_is_too_much_is_counted(tmp_path):
    output = RawOutput(tmp_path / "output", event="broker.log")
    output.path.write_bytes(b"x" * 100 + b"\n" + b"y" * READ_LIMIT)
    with capture_logs() as lines:
        output.log_new()
    assert [line["text"][:3] for line in lines] == ["xxx", "yyy", "101"]
    assert os.path.getsize(output.path) == 0  # noqa: PTH202


def test_without_a_file_nothing_changes(tmp_path):
    program = "from governor.processes.raw_output import *\nwith redirection('/none/there'): print('here')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"here\n"
    assert RawOutput(tmp_path / "none", event="x").log_new() == []

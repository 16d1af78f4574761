import json
import os
import socket
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from governor import logs

PROGRAM = """
import logging, sys
from governor import logs
logs.configure(log_format=sys.argv[1], level="info", run="r1")
log = logs.get_logger()
log.debug("not.shown")
log.info("conductor.exited", exit_code=3)
logging.getLogger("somebody.else").warning("their words")
try:
    secret = "swordfish"
    raise ValueError("out of order")
except ValueError:
    log.exception("governor.crashed")
"""


def test_each_line_is_one_json_object_without_local_variables():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "json"], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    exited, theirs, crashed = [json.loads(line) for line in done.stderr.splitlines()]
    assert (exited["event"], exited["exit_code"], exited["run"], exited["level"]) == (
        "conductor.exited",
        3,
        "r1",
        "info",
    )
    assert theirs["event"] == "their words"
    assert crashed["exception"][0]["exc_value"] == "out of order"
    assert "swordfish" not in done.stderr


def test_what_user_code_logs_with_structlog_is_no_line_of_ours_beside_it():
    program = PROGRAM.replace('run="r1"', 'run="r1", beside_user_code=True')
    program += "import structlog; structlog.get_logger().info('theirs', where='here')"
    done = subprocess.run([sys.executable, "-c", program, "json"], capture_output=True, text=True, check=True)
    assert [json.loads(line)["run"] for line in done.stderr.splitlines()] == ["r1"] * 3
    assert "theirs" in done.stdout


OF_A_SCRIPT = """
import logging, sys
import structlog
from governor import logs
if "structlog" in sys.argv:
    structlog.configure([structlog.processors.JSONRenderer()])
else:
    logging.basicConfig(level=sys.argv[1], format="%(name)s %(levelname)s %(message)s")
logs.use_standard_logging()
log = logs.get_logger()
log.info("run.accepted", run="r1")
log.warning("run.ended", reason="red \\x1b[31m\\nand two lines")
"""
ENDED = "governor WARNING event='run.ended' reason='red \\x1b[31m\\nand two lines'"


@pytest.mark.parametrize("chosen", ["default", "use_standard_logging"])
def test_structlog_is_loaded_with_the_first_line(chosen):
    program = (
        f"import sys; from governor import logs; logs.{chosen}(); assert 'structlog' not in sys.modules\n"
    )
    program += "logs.get_logger().warning('its.event'); assert 'structlog' in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "its.event" in done.stderr


@pytest.mark.parametrize(
    ("how", "lines"),
    [
        ("INFO", ["governor INFO event='run.accepted' run='r1'", ENDED]),
        ("WARNING", [ENDED]),
        ("structlog", []),
    ],
)
def test_a_script_has_the_lines_where_its_own_are(how, lines):
    done = subprocess.run(
        [sys.executable, "-c", OF_A_SCRIPT, how], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == lines
    theirs = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert theirs == (["run.accepted", "run.ended"] if how == "structlog" else [])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_written_with_its_end(unbuffered):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # tells one write from two
    with ours, theirs:
        environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        subprocess.run([sys.executable, "-c", PROGRAM, "json"], stderr=theirs, env=environ, check=True)
        lines = [json.loads(ours.recv(1 << 16)) for _ in range(3)]
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    assert [line["event"] for line in lines] == ["conductor.exited", "their words", "governor.crashed"]


def test_lines_for_people_have_no_local_variables_either():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "console"], capture_output=True, text=True, check=True
    )
    assert "ValueError: out of order" in done.stderr
    assert "swordfish" not in done.stderr.replace('secret = "swordfish"', "")
    assert len(done.stderr.splitlines()) < 12


UNHEARD = """
import logging, sys
from governor import logs
logs.configure(log_format=logs.choose_format(), level="info")
log = logs.get_logger()
for number in range(2000):
    log.info("conductor.exited", exit_code=number)
logging.getLogger("somebody.else").warning("their words")
{closed}
log.info("conductor.exited", exit_code=3)
logging.getLogger("somebody.else").warning("their words")
print("went on")
"""


@pytest.mark.parametrize(
    ("redirection", "closed"),
    [
        ("2>/dev/full", ""),
        ("2>&-", ""),
        ("2>/dev/null", "sys.stderr.close()"),
        ("2>/dev/full", "sys.stderr = None"),
    ],
)
def test_a_closed_log_loses_its_lines_and_raises_nothing(redirection, closed):
    """A full disk, no standard error from the start, one that was closed or taken away."""
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, UNHEARD.format(closed=closed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout == "went on\n"


SHARED = """
import os, sys
from governor import logs
logs.share_output(int(sys.argv[1]))
print("printed")
os.write(1, b"written\\n")
sys.stderr.write("\\udcff told\\n")
os.system("echo started")
os._exit(0)
"""


def test_what_a_process_prints_goes_to_one_file_line_by_line(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", SHARED, "2"], stderr=file, stdout=subprocess.DEVNULL, check=True
        )
    said = (tmp_path / "out").read_text().splitlines()
    assert said == ["printed", "written", "\\udcff told", "started"]


def test_printing_to_a_terminal_that_is_gone_is_no_fault():
    reading, writing = os.pipe()
    os.close(reading)
    program = SHARED.replace('os.write(1, b"written\\n")', "").replace("os._exit(0)", "os._exit(5)")
    done = subprocess.run(
        [sys.executable, "-c", program, str(writing)], pass_fds=[writing], capture_output=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")


CLOSED = """
import os, sys
from governor import logs
logs.share_output(int(sys.argv[1]))
print("first", end="")
sys.stdout.close()
sys.stderr.detach()
print(" second")
print("lost", file=sys.stderr)
os._exit(5)
"""


def test_a_stream_that_is_closed_serves_what_runs_after():
    done = subprocess.run([sys.executable, "-c", CLOSED, "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "first second\n"), done.stderr


def test_lines_of_one_kind_are_counted_after_the_first_ones_and_told_each_minute():
    now = [0.0]
    repeated = logs.Repeated(first=2, now=lambda: now[0])
    with capture_logs() as lines:
        for number in range(100):
            now[0] = number
            repeated.log(
                "warning", "task.ended", kind="failed", run="r1", outcome="failed", task=f"t{number}"
            )
        repeated.log("warning", "task.ended", kind="crashed", run="r1", outcome="crashed", task="x")
        repeated.flush()
        repeated.log("warning", "task.ended", kind="failed", run="r1", outcome="failed", task="next")
    shown = [(line["event"], line.get("task"), line.get("count")) for line in lines]
    assert shown == [
        ("task.ended", "t0", None),
        ("task.ended", "t1", None),
        ("lines.left_out", None, 61),
        ("task.ended", "x", None),
        ("lines.left_out", None, 37),
        ("task.ended", "next", None),
    ]
    assert lines[2]["per_minute"] == 61
    assert (lines[2]["lines"], lines[2]["run"], lines[2]["outcome"]) == ("task.ended", "r1", "failed")


CONTROLS = r"""
from governor import logs
logs.configure(log_format="console")
logs.get_logger().warning("task.ended", reason="\x1b[31mred\x07")
"""


def test_text_of_users_reaches_no_terminal_as_it_is():
    done = subprocess.run([sys.executable, "-c", CONTROLS], capture_output=True, text=True, check=True)
    assert "\x1b[31mred" not in done.stderr
    assert r"\x1b[31mred\x07" in done.stderr.replace(r"\\x", r"\x")

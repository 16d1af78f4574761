import json
import subprocess
import sys

PROGRAM = """
import logging, sys
from governor import logs
logs.configure(log_format="json", level="info", run="r1")
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


def test_each_line_is_one_json_object_without_anybodys_variables():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
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

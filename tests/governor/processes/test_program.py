"""Programs and what they leave behind, in a process that adopts orphans."""

import subprocess
import sys

SCRIPT = """
import os
from pathlib import Path
from governor.processes import kill_tree, prctl
from governor.processes.program import Leftovers, Program

prctl.adopt_orphans()
kept = Program(["sleep", "1000"], cwd=Path("."), env={})
leftovers = Leftovers()
ended = Program(["sh", "-c", "setsid sh -c 'trap \\"\\" TERM; sleep 1000 & sleep 1000' & sleep 1000 & exit 3"], cwd=Path("."), env={})
code = ended.wait()
below = kill_tree.descendants(os.getpid())
leftovers.kill()
ended.read_all()
print(code, len(below) > 2, kill_tree.descendants(os.getpid()) == {kept.pid}, ended.stdout.is_alive(), flush=True)
kept.terminate(5)
print(kept.wait(), kill_tree.descendants(os.getpid()))
"""


def test_what_a_program_has_started_is_killed_and_reaped_and_others_are_not():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "3 True True False\n-15 set()\n", done.stderr

"""`governor check` and `governor try` with programs and services, as a person starts them."""

import json
import subprocess
import sys

import pytest

from tests.support.living import lives

RUN = """\
name: programs
conductors:
  services:
    free: {command: [python3, -m, http.server, "{port}"]}
    fixed: {command: [python3, -m, http.server, "{port}"], port: 8123}
phases:
  - name: p
    tasks:
      - {id: first, command: [sh, -c, "echo said; echo 5"]}
      - {id: second, command: [sh, -c, "cat {inputs}; echo; echo cause >&2; exit {code}"], args: {code: 3}, depends_on: [first]}
  - name: q
    tasks:
      - {id: fixed, command: [echo, "{services.fixed.port}"]}
  - name: r
    tasks:
      - {id: free, command: [echo, "{services.free.port}"]}
"""


@pytest.fixture
def governor(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)

    def call(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "governor", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    call.folder = tmp_path
    return call


def test_a_program_runs_in_the_terminal(governor):
    out, err = governor("try", "run.yaml", "--task", "first")
    assert out == "said\n5\n5\n"
    assert "task first returned" in err


def test_what_it_leaves_behind_is_dead_then(governor):
    line = "setsid sh -c 'echo $$ > pid; sleep 1000; :' > /dev/null & while [ ! -s pid ]; do :; done"
    tasks = [{"id": "leaves", "command": ["sh", "-c", line]}]
    (governor.folder / "leaves.yaml").write_text(
        json.dumps({"name": "l", "phases": [{"name": "p", "tasks": tasks}]})
    )
    governor("try", "leaves.yaml", "--task", "leaves")
    assert not lives(int((governor.folder / "pid").read_text()))


def test_one_that_fails_tells_its_exit_code(governor):
    out, err = governor("try", "run.yaml", "--task", "second", code=1)
    assert out == 'said\n5\n{"first": 5}\n'
    assert err.splitlines()[-2:] == ["cause", "governor: error: exit code 3: cause"]


def test_services_are_not_started_and_need_a_port_of_their_own(governor):
    assert governor("try", "run.yaml", "--task", "fixed")[0] == "8123\n8123\n"
    _, err = governor("try", "run.yaml", "--task", "free", code=2)
    assert "no services are started here, and service 'free' has no port of its own" in err


def test_check_names_what_is_not_there_with_its_line(governor):
    assert governor("check", "run.yaml")[0] == "run.yaml: no faults; 3 phases, 3 conductors\n"
    wrong = RUN.replace("[sh, -c", "[shh, -c", 1).replace("-m, http.server", "serve.py", 1)
    (governor.folder / "run.yaml").write_text(wrong)
    _, err = governor("check", "run.yaml", code=78)
    first, second = err.splitlines()[1:]
    assert first.startswith("  run.yaml:4: conductors.services.free.command[1]: there is no file ")
    assert second.startswith("  run.yaml:9: phases[0].tasks[0].command[0]: there is no program 'shh' on PATH")

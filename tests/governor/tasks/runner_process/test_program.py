"""A program as a task: what it is given, its value, and how it fails."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

from governor.failures import reason_of
from governor.processes.program import Program
from governor.tasks.api import TaskCancelled, TaskContext
from governor.tasks.runner_process import program
from governor.tasks.runner_process.program import ProgramFailed


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a line of a shell, or the words of a program."""
    (tmp_path / "run").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")

    def start(command, *, inputs=None, attempt=1, grace=5.0, args=None, env=None, **fields):
        context = TaskContext(
            run="uid",
            task="train",
            run_id=3,
            attempt=attempt,
            deadline=None,
            run_folder=tmp_path / "run",
            log=logging.getLogger(),
        )
        given = {"cwd": None, "stdin": None, "result": None, **fields}
        words = ["sh", "-c", command] if isinstance(command, str) else command
        return program.run(
            command=words,
            args=args or {},
            env=env or {},
            grace=grace,
            inputs=inputs or {},
            context=context,
            **given,
        )

    yield start
    assert [*(tmp_path / "run").iterdir()] == [], "the files of an attempt are gone"


def test_it_gets_arguments_variables_inputs_and_standard_input(run, tmp_path):
    (tmp_path / "home" / "sub").mkdir()
    (tmp_path / "home" / "text").write_text("read me")
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), sys.stdin.read(), dict(os.environ)]))"
    words = ["{python}", "-c", code, "--lr={lr}", "{task} {run_id} {attempt}", "{{lr}}", "{run_folder}"]
    args = {"lr": 1e-3, "name": "é"}
    [argv, cwd, stdin, environ] = run(
        words, args=args, env={"NAME": "{name}"}, cwd="sub", stdin="text", attempt=2
    ).value
    assert argv == ["--lr=0.001", "train 3 2", "{lr}", str(tmp_path / "run")]
    assert (cwd, stdin) == (str(tmp_path / "home" / "sub"), "read me")
    shown = {name: environ.get(name) for name in ("GOVERNOR_RUN", "GOVERNOR_TASK", "GOVERNOR_RUN_ID", "NAME")}
    assert shown == {"GOVERNOR_RUN": "uid", "GOVERNOR_TASK": "train", "GOVERNOR_RUN_ID": "3", "NAME": "é"}
    assert "GOVERNOR_DEADLINE" not in environ, "it has none"


def test_inputs_are_json_with_arrays_as_lists(run):
    inputs = {"a": {"x": 1.5}, "b": [np.arange(3), np.float32(2)]}
    value = run('cat "$GOVERNOR_INPUTS"', inputs=inputs).value
    assert value == {"a": {"x": 1.5}, "b": [[0, 1, 2], 2.0]}
    with pytest.raises(ProgramFailed, match=r"no form in JSON .it holds a set"):
        run("true", inputs={"a": {1}})


@pytest.mark.parametrize(
    ("line", "value", "metrics"),
    [
        ("echo text; echo '{\"loss\": 0.5, \"ok\": true, \"name\": \"x\"}'", {"loss": 0.5, "ok": True, "name": "x"}, {"loss": 0.5}),
        ("echo '[1, 2]'; echo; echo", [1, 2], {}),
        ("printf 'step 1\\rstep 2\\r7'", 7, {}),
        ("echo done", None, {}),
        ("true", None, {}),
        ("echo '{\"a\": 1}' > $GOVERNOR_RESULT; echo 2", {"a": 1}, {"a": 1.0}),
        ("echo '{\"a\": NaN}' > {result}", {"a": pytest.approx(float("nan"), nan_ok=True)}, {"a": pytest.approx(float("nan"), nan_ok=True)}),
    ],
)  # fmt: skip
def test_its_value_is_its_result_or_its_last_line(run, line, value, metrics):
    found = run(line)
    assert (found.value, found.metrics) == (value, metrics)


def test_numbers_that_are_too_many_or_too_large_are_no_metrics(run):
    many = run(
        ["{python}", "-c", "import json; print(json.dumps({'metric %d' % n: n for n in range(9000)}))"]
    )
    assert (len(many.value), many.metrics) == (9000, {})
    assert run('echo \'{"a": 1' + "0" * 400 + ', "b": 2}\'').metrics == {"b": 2.0}
    assert run("echo " + "[" * 5000).value is None


def test_a_result_file_must_be_written_by_this_attempt(run, tmp_path):
    old = tmp_path / "home" / "metrics.json"
    old.write_text('{"old": 1}')
    with pytest.raises(ProgramFailed, match=r"it has not written its result, .*metrics.json"):
        run("true", result="metrics.json")
    found = run("echo '{\"new\": 2}' > metrics.json; echo 5", result="metrics.json")
    assert found.metrics == {"new": 2.0}
    with pytest.raises(ProgramFailed, match=r"metrics.json is no JSON"):
        run("echo no > metrics.json", result="metrics.json")
    for line in ("mkfifo", "ln -s /dev/zero"):
        with pytest.raises(
            ProgramFailed, match=r"its result .*metrics.json cannot be read: it is no regular file"
        ):
            run(f"rm metrics.json; {line} metrics.json", result="metrics.json")
        with pytest.raises(ProgramFailed, match=r"its result .* cannot be read: it is no regular file"):
            run(f"{line} $GOVERNOR_RESULT")


@pytest.mark.parametrize(
    ("line", "reason", "crashed"),
    [
        ("exit 3", "exit code 3", False),
        ("echo not this; echo 'a\n\nValueError: bad' >&2; exit 1", "exit code 1: ValueError: bad", False),
        ("kill -SEGV $$", "killed by SIGSEGV", True),
        ("sh -c 'kill -KILL $$'", "exit code 137 (128 + SIGKILL): Killed", False),
        ("exit 255", "exit code 255", False),
    ],
)
def test_exit_code_and_signal_are_the_reason(run, line, reason, crashed):
    with pytest.raises(ProgramFailed) as raised:
        run(line)
    assert str(reason_of(raised.value)) == reason
    assert raised.value.crashed is crashed


def test_the_end_of_standard_error_is_the_traceback(run):
    with pytest.raises(ProgramFailed) as raised:
        run([sys.executable, "-c", "def f():\n    1 / 0\n\nf()"])
    text = reason_of(raised.value).traceback
    assert text.startswith("Traceback")
    assert text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        (["no-such"], {}, "there is no program 'no-such' on PATH, nor in .*/home"),
        (["true"], {"cwd": "nowhere"}, "cannot start true: No such file or directory .*nowhere"),
        (["cat"], {"stdin": "nowhere"}, "cannot start cat: No such file or directory .*nowhere"),
        (["./text"], {}, r"text is not executable: `chmod \+x ./text`"),
        (["./bad"], {}, "cannot start ./bad: Exec format error"),
    ],
)
def test_a_program_that_cannot_start_says_why(run, tmp_path, words, fields, said):
    (tmp_path / "home" / "text").write_text("")
    (tmp_path / "home" / "bad").write_text("\0")
    (tmp_path / "home" / "bad").chmod(0o700)
    with pytest.raises(ProgramFailed, match=said):
        run(words, **fields)


@contextlib.contextmanager
def cancelled_by(fifo, monkeypatch):
    """A cancellation, as of a runner, when the program says that it has begun, and is waited for."""
    waits, cancelled = threading.Event(), threading.Event()
    wait = Program.wait

    def wait_for_it(one, seconds=None):
        waits.set()
        return wait(one, seconds)

    def cancel(*_):
        if not cancelled.is_set():
            cancelled.set()
            raise TaskCancelled

    def await_begin():
        with fifo.open() as stream:
            stream.read()
        waits.wait()
        while not cancelled.wait(
            0.05
        ):  # again: one that comes just before a system call does not interrupt it
            os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(Program, "wait", wait_for_it)
    before = signal.signal(signal.SIGUSR1, cancel)
    os.mkfifo(fifo)
    thread = threading.Thread(target=await_begin)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_cancelled_program_gets_sigterm_and_its_last_words_are_told(run, tmp_path, monkeypatch):
    line = "trap 'echo saved; echo late >&2; exit 0' TERM; echo begun > ../fifo; sleep 1000 & wait; wait"
    with cancelled_by(tmp_path / "fifo", monkeypatch), pytest.raises(ProgramFailed) as raised:
        run(line)
    assert str(raised.value) == "the task was cancelled"
    assert reason_of(raised.value).traceback.endswith("late")


def test_one_that_ignores_sigterm_is_killed_within_the_grace(run, tmp_path, monkeypatch):
    line = "trap '' TERM; echo $$ > ../pid; echo begun > ../fifo; sleep 1000 & wait; wait"
    with cancelled_by(tmp_path / "fifo", monkeypatch), pytest.raises(ProgramFailed):
        run(line, grace=0.2)
    assert time.time() - (tmp_path / "pid").stat().st_mtime < 3
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_program_does_not_see_what_is_ray_s_and_ours(run, monkeypatch):
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb.set_trace")
    root = str(program.program._ROOT)
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}/mine")
    environ = run(["{python}", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]).value
    assert not {name for name in environ if name.startswith("RAY_")} | ({"PYTHONBREAKPOINT"} & environ.keys())
    assert environ["PYTHONPATH"] == "/mine"
    assert environ["PATH"].split(os.pathsep)[-1] in sys.executable


def test_output_goes_on_as_it_comes(run, capfd):
    run("echo out; echo err >&2; printf unfinished")
    out, err = capfd.readouterr()
    assert (out, err) == ("out\nunfinished", "err\n")

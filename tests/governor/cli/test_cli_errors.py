import errno
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from governor import cli as package
from governor.cli import cli
from governor.cli.run import _new_state_dir, _state_dir_of
from governor.errors import NoSuchRun, NotPermitted, TryAgain
from governor.locations import default_state_dir

BAD = "name: x\nsede: 1\nphases:\n  - name: a\n    tasks: [{id: t, call: 'absent:f'}]\n"


def invoke(*arguments, **options):
    return CliRunner().invoke(cli, list(arguments), prog_name="governor", **options)


@pytest.fixture
def verb(monkeypatch):
    """A verb that raises what the test puts in."""
    raised = []

    @click.command("status")
    def command():
        raise raised[0]

    monkeypatch.setattr(package.Verbs, "get_command", lambda *_: command)
    return raised


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NoSuchRun("u1"), 4, "governor: error: no run 'u1'"),
        (TryAgain("draining"), 75, "governor: error: draining"),
        (ValueError("two\nlines"), 70, "governor: error: internal: ValueError: two lines\n"),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "/s/x"),
            75,
            "/s/x can't be written: Disk quota exceeded",
        ),
        (OSError(errno.EIO, "Input/output error"), 70, "governor: error: internal: OSError"),
        (KeyboardInterrupt(), 130, "governor: interrupted"),
    ],
)
def test_errors_end_with_their_exit_code(verb, error, code, said):
    verb.append(error)
    done = invoke("status")
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_the_daemon_lacks_and_governor_run_has_is_told_with_what_shows_it(
    verb, monkeypatch, tmp_path
):
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("GOVERNOR_BROKER", raising=False)
    for uid in ("u123", "u4", "u5"):
        (tmp_path / "single" / "maze-1" / "runs" / uid).mkdir(parents=True)
    (tmp_path / "runs" / "v1").mkdir(parents=True)
    verb.append(NoSuchRun("u1"))
    done = invoke("status")
    said = f"u123 is a run of `governor run`, in {tmp_path}/single/maze-1/runs/u123: `governor report u123` shows it, "
    assert (done.exit_code, done.stderr.startswith(f"governor: error: {said}")) == (4, True)
    assert "`governor run --resume u123` goes on with it" in done.stderr
    assert "no run 'u1'" in invoke("--broker", "tcp://elsewhere:7000", "status").stderr
    for other in (NoSuchRun("u"), NoSuchRun("v1"), NoSuchRun("w"), NoSuchRun("u1", "u1 was pruned")):
        verb[0] = other
        assert invoke("status").stderr == f"governor: error: {other}\n"


def test_beside_a_daemon_of_another_user_a_report_is_of_the_files_here(monkeypatch, tmp_path):
    def refused(_broker):
        raise NotPermitted("the socket is another user's")

    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("GOVERNOR_BROKER", raising=False)
    monkeypatch.setattr("governor.executor.Executor", refused)
    assert "another user's" in invoke("report", "u1").stderr
    (tmp_path / "single" / "maze-1" / "runs" / "u123").mkdir(parents=True)
    assert f"{tmp_path}/single/maze-1/governor.db" in invoke("report", "u1").stderr  # it is not there


def test_debug_shows_where(verb):
    verb.append(ValueError("x"))
    assert "Traceback" in invoke("--debug", "status").stderr


def test_usage():
    for arguments in (
        ["nope"],
        ["status", "--nope"],
        ["check"],
        ["watch"],
        ["run"],
        ["run", "f", "--resume", "u"],
        ["resume"],
    ):
        assert invoke(*arguments).exit_code == 2
    assert invoke("--version").output == "governor 0.1.0\n"
    assert "Exit codes:" in invoke("--help").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sumbit", "x"], "no such verb 'sumbit'; did you mean 'submit'?"),
        (["--broker", "x", "statuss"], "no such verb 'statuss'; did you mean 'status'?"),
        (["frobnicate"], "no such verb 'frobnicate'\n"),
        (["submit", "--wach", "x"], "--watch"),
        (["--brokr", "x", "status"], "--broker"),
    ],
)
def test_a_misspelling_is_told_the_nearest_right_word(arguments, said):
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("verb", sorted(package.LOCAL_VERBS))
def test_a_verb_of_this_machine_takes_no_context(verb, monkeypatch):
    monkeypatch.setenv("GOVERNOR_CONTEXT", "")
    asked = invoke("--context", "lab", *([verb, "new"] if verb == "keys" else [verb]))
    assert (asked.exit_code, f"`governor {verb}` is about this machine" in asked.output) == (2, True)
    assert invoke(verb, "--help").exit_code == 0


def test_a_run_to_resume_is_found_by_the_unique_beginning_of_its_id(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    single = default_state_dir() / "single"
    for folder, uid in (("a", "bcd"), ("a", "bce"), ("b", "bxy")):
        (single / folder / "runs" / uid).mkdir(parents=True)
    found = [_state_dir_of(uid).name for uid in ("bcd", "bc", "bx")]
    assert found == ["a", "a", "b"], "several runs of one folder are told apart by its journal"
    for uid, said in (("b", "beginning of several"), ("z", "no run 'z' below"), ("", "no run")):
        done = invoke("run", "--resume", uid)
        assert done.exit_code == 4
        assert said in done.stderr


def test_the_state_folder_is_private_where_a_run_makes_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert _new_state_dir(tmp_path / "run.yaml").parents[1] == default_state_dir()
    assert default_state_dir().stat().st_mode & 0o777 == 0o700


def test_check_lists_all_faults_also_of_entries(tmp_path):
    (tmp_path / "run.yaml").write_text(BAD)
    done = invoke("check", str(tmp_path / "run.yaml"))
    assert (done.exit_code, done.stdout) == (78, "")
    assert f"{tmp_path}/run.yaml:2: sede: unknown key 'sede'; did you mean 'seed'?" in done.stderr
    assert f"{tmp_path}/run.yaml:5: phases[0].tasks[0].call: no module named 'absent'" in done.stderr


def test_check_names_a_file_that_no_conductor_would_import(tmp_path):
    (tmp_path / "run.yaml").write_text(BAD.replace("absent:", "queue:"))
    (tmp_path / "queue.py").write_text("def f(): ...")
    done = invoke("check", str(tmp_path / "run.yaml"))
    assert done.exit_code == 78
    assert f"{tmp_path}/run.yaml:5: phases[0].tasks[0].call: module 'queue' is /" in done.stderr
    assert f"in a conductor, not {tmp_path}/queue.py: give that file another name" in done.stderr


def test_check_as_json(tmp_path):
    (tmp_path / "run.yaml").write_text(BAD)
    done = invoke("check", "--json", str(tmp_path / "run.yaml"))
    document = json.loads(done.stdout)
    assert (done.exit_code, document["ok"], [fault["line"] for fault in document["faults"]]) == (
        78,
        False,
        [2, 5],
    )
    (tmp_path / "run.yaml").write_text(BAD.replace("sede", "seed").replace("absent:f", "os:getcwd"))
    done = invoke("check", "--json", str(tmp_path / "run.yaml"))
    assert (done.exit_code, json.loads(done.stdout)["faults"]) == (0, [])


def test_schema():
    assert json.loads(invoke("check", "--schema").stdout)["additionalProperties"] is False


def test_no_daemon(monkeypatch):
    monkeypatch.setattr("governor.locations.NAME", "run-governor-of-nobody")
    done = invoke("status", env={"GOVERNOR_BROKER": "", "RUNTIME_DIRECTORY": ""})
    assert done.exit_code == 69
    assert "/run/run-governor-of-nobody/broker.sock" in done.stderr
    assert invoke("--broker", "foo://x", "status").exit_code == 2


def test_a_missing_run_file_is_78(tmp_path):
    for verb_name in ("check", "submit"):
        assert invoke(verb_name, str(tmp_path / "none.yaml")).exit_code == 78


def test_bad_options_of_serve_are_78_and_start_nothing():
    done = invoke("serve", "--slots", "0", "--ray", "x")
    assert done.exit_code == 78
    assert "slots:" in done.stderr
    assert "ray.address:" in done.stderr


@pytest.mark.parametrize(("verb_name", "code"), [("serve", 78), ("doctor", 1)])
def test_a_configuration_that_may_not_be_read_is_told_as_its_other_faults_are(
    verb_name, code, tmp_path, monkeypatch
):
    read = Path.read_text

    def denied(path, *options, **named):
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *options, **named)

    file = tmp_path / "governor.toml"
    file.touch()
    monkeypatch.setattr("os.access", lambda path, *_, **__: str(path) != str(file))
    monkeypatch.setattr(Path, "read_text", denied)
    done = invoke(verb_name, "--config", str(file))
    assert done.exit_code == code
    assert "can't be read: Permission denied" in done.output

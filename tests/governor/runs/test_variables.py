"""The variables of a run: the order in which they count, when the file is read, and its faults."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from governor.errors import ProcessError, UsageError
from governor.run_file import load
from governor.runs import variables
from governor.runs.assignment import Assignment
from governor.runs.run_changes import accept, changed_run
from tests.support.run_files import faults_in

RUN = {"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", "call": "a:b"}]}]}


def assignment(folder, *, given=None, **keys):
    return Assignment(uid="u", run=load.parse({**RUN, **keys}), folder=str(folder), variables=given or {})


async def test_env_counts_more_than_the_file_and_what_the_daemon_adds_counts_most(tmp_path):
    (tmp_path / ".env").write_text("A=file\nB=file\nC=file\n")
    made = assignment(tmp_path, env={"B": "env", "C": "env"}, env_file=".env", given={"C": "daemon"})
    assert await variables.RunVariables(made).get() == {"A": "file", "B": "env", "C": "daemon"}


async def test_the_file_is_read_once_and_again_only_where_it_could_not_be(tmp_path):
    made = variables.RunVariables(assignment(tmp_path, env_file=".env"))
    with pytest.raises(ProcessError, match=r"env_file \.env: .*\.env can't be read: No such file"):
        await made.get()
    (tmp_path / ".env").write_text("A=1")
    assert await made.get() == {"A": "1"}
    (tmp_path / ".env").write_text("A=2")
    assert await made.get() == {"A": "1"}


def test_numbers_become_texts_and_other_values_are_faults():
    assert load.parse({**RUN, "env": {"A": 1, "B": 0.5, "C": "x"}}).env == {"A": "1", "B": "0.5", "C": "x"}
    [(path, message)] = faults_in({**RUN, "env": {"A": True}})
    assert path == ("env", "A")
    assert "needs quotes" in message


def test_a_reserved_name_is_a_fault_that_names_it():
    [(path, message)] = faults_in({**RUN, "env": {"RAY_ADDRESS": "x", "FREE": 1}})
    assert path[:1] == ("env",)
    assert "RAY_ADDRESS is not for runs" in message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "can't be read: No such file or directory"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"#" * (variables.MAX_BYTES + 1), "is larger than 1 MiB"),
        (b"A", "line 1 is not NAME=VALUE"),
    ],
)
def test_faults_of_the_file_stand_at_its_key(tmp_path, content, fault):
    if content is not None:
        (tmp_path / ".env").write_bytes(content)
    [(path, message)] = variables.faults({**RUN, "env_file": ".env"}, tmp_path)
    assert path == ("env_file",)
    assert message.endswith(fault)


@pytest.mark.parametrize("data", [None, [], {"env_file": 1}, RUN])
def test_a_run_file_without_one_has_no_faults(tmp_path, data):
    assert not list(variables.faults(data, tmp_path))


def test_what_is_sound_is_known_to_a_check(tmp_path):
    (tmp_path / ".env").write_text("A=1\nbad\nB=2\n")
    run = load.parse({**RUN, "env_file": ".env", "env": {"B": 3}})
    assert variables.given(SimpleNamespace(valid=run, folder=tmp_path)) == {"A": "1", "B": "3"}
    assert variables.given(SimpleNamespace(valid=None, folder=tmp_path)) == {}


# -- secrets -------------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The folder of systemd's credentials, and that of the user's own secrets."""
    found = tmp_path / "credentials", tmp_path / "config" / "run-governor" / "secrets"
    for folder in found:
        folder.mkdir(parents=True)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(found[0]))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return found


def put(folder, name, content, *, mode=0o600):
    (folder / name).write_bytes(content)
    (folder / name).chmod(mode)


async def test_secrets_are_files_a_credential_before_one_of_the_user(places, tmp_path):
    put(places[0], "both", b"of systemd\n", mode=0o440)
    put(places[1], "both", b"of the user")
    put(places[1], "own", b"line one\nline two\r\n")
    made = variables.RunVariables(assignment(tmp_path, secrets={"A": "both", "B": "own"}, env={"C": "c"}))
    assert not made.mask
    assert await made.get() == {
        "A": "of systemd",
        "B": "line one\nline two",
        "C": "c",
        "GOVERNOR_SECRETS": "A,B",
    }
    assert made.mask.text("of systemd c line two") == "[secret A] c [secret B]"


@pytest.mark.parametrize(
    ("content", "mode", "fault"),
    [
        (None, 0, r"there is no secret 'key': no file .*/credentials/key or .*/secrets/key$"),
        (
            b"sk-12345678",
            0o640,
            r"secrets/key can be read by others, or belongs to someone else: `chmod 600` it",
        ),
        (b"short", 0o600, r"has fewer than 8 characters"),
        (b"\xff" * 9, 0o600, r"is no text of 1 MiB at most"),
        (b"zero\0byte", 0o600, r"is no text"),
        (b"x" * (variables.MAX_BYTES + 1), 0o600, r"is no text of 1 MiB at most"),
    ],
)
def test_what_is_wrong_with_a_secret_is_told_without_its_value(places, tmp_path, content, mode, fault):
    if content is not None:
        put(places[1], "key", content, mode=mode)
    made = assignment(tmp_path, secrets={"KEY": "key"}).run
    with pytest.raises(ProcessError, match=fault) as error:
        variables.of_run(made, str(tmp_path))
    with pytest.raises(UsageError, match=fault):
        variables.require_secrets([made])
    assert content is None or content.decode(errors="replace") not in str(error.value)
    assert variables.given(SimpleNamespace(valid=made, folder=tmp_path)) == {"KEY": ""}


def test_a_folder_or_a_pipe_in_place_of_a_secret_is_a_fault(places):
    (places[1] / "folder").mkdir()
    os.mkfifo(places[1] / "pipe")
    (places[1] / "loop").symlink_to("loop")
    for name in ("folder", "pipe"):
        with pytest.raises(ProcessError, match=f"secrets/{name} (is no file|can't be read: Is a directory)"):
            variables.secret(name)
    with pytest.raises(ProcessError, match="can't be read: Too many levels of symbolic links"):
        variables.secret("loop")


def test_a_secret_and_a_variable_of_one_name_are_a_fault():
    [(_, message)] = faults_in({**RUN, "env": {"A": 1}, "secrets": {"A": "a"}})
    assert "A is set by `env` and by `secrets`" in message
    [(path, _)] = faults_in({**RUN, "secrets": {"A": "../a"}})
    assert path == ("secrets", "A")


def test_the_mask_of_a_run_is_found_by_its_folder(places, tmp_path):
    put(places[1], "key", b"sk-12345678")
    assert not variables.mask_of(tmp_path)
    put(places[1].parent, "outside", b"sk-12345678")
    for content in ("{", "[]", '{"secrets": {"A": "missing", "B": 1, "C": "../outside", "D": null}}'):
        (tmp_path / "run.json").write_text(content)
        assert not variables.mask_of(tmp_path)
    (tmp_path / "run.json").write_text('{"secrets": {"A": "key", "B": "missing"}}')
    assert variables.mask_of(tmp_path).text("it is sk-12345678!") == "it is [secret A]!"


def test_a_run_at_work_keeps_its_variables(tmp_path):
    made = assignment(tmp_path, env={"A": "1"})
    with pytest.raises(Exception, match=r"env\.A can't be set now"):
        accept(changed_run(made.run, {"env.A": "2"}), made, params={}, phase=0)

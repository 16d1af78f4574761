"""The variables of a run: the order in which they count, when the file is read, and its faults."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from governor.errors import ProcessError
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


def test_a_run_at_work_keeps_its_variables(tmp_path):
    made = assignment(tmp_path, env={"A": "1"})
    with pytest.raises(Exception, match=r"env\.A can't be set now"):
        accept(changed_run(made.run, {"env.A": "2"}), made, params={}, phase=0)

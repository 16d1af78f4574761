"""What `governor check` says of tasks that run programs."""

import stat

import pytest

from governor.run_file import check, check_programs
from governor.units.sections import spell
from tests.support.run_files import faults_in


def run_of(*tasks):
    named = [{"id": f"t{index}", **task} for index, task in enumerate(tasks)]
    return {"name": "p", "phases": [{"name": "p", "tasks": named}]}


def faults_of(task):
    return [(spell(path).removeprefix("phases[0].tasks[0]"), said) for path, said in faults_in(run_of(task))]


@pytest.mark.parametrize(
    ("task", "place", "said"),
    [
        ({}, "", "must have one of 'call' and 'command'"),
        ({"call": "m:f", "command": ["ls"]}, "", "must have one of 'call' and 'command', not both"),
        ({"command": "python train.py"}, ".command", "must be a list of words, as [python, train.py]"),
        ({"command": []}, ".command", "must have at least 1 item"),
        ({"command": ["ls", True]}, ".command[1]", "must be a text or a number: true needs quotes"),
        ({"command": ["ls", "a\0"]}, ".command[1]", "holds a zero byte"),
        ({"command": ["ls"], "env": {"2X": 1}}, ".env.2X", "begin with a letter"),
        ({"call": "m:f", "cwd": "x"}, "", "'cwd' has no meaning without 'command'"),
        ({"comand": ["ls"]}, ".comand", "did you mean 'command'?"),
        (
            {"command": ["ls", "{atempt}"]},
            ".command[1]",
            "unknown placeholder {atempt}; did you mean 'attempt'?",
        ),
        ({"command": ["ls"], "env": {"X": "{y}"}}, ".env.X", "(the text {y} is written {{y}})"),
        ({"command": ["ls"], "cwd": "{y}"}, ".cwd", "unknown placeholder {y}"),
        ({"command": ["ls"], "args": {"lr": 1}}, ".args.lr", "is used nowhere: write {lr} in 'command'"),
    ],
)
def test_faults_have_their_place(task, place, said):
    [found] = faults_of(task)
    assert found[0] == place
    assert said in found[1]


def test_a_program_with_all_keys_is_good():
    task = {
        "command": ["python", "train.py", "--lr", "{lr}", 3, 0.5, "{{lr}}", "${HOME}"],
        "args": {"lr": 0.1, "name": "x"},
        "cwd": "{run_folder}",
        "env": {"NAME": "{name}", "OMP_NUM_THREADS": 4},
        "stdin": "{inputs}",
        "result": "metrics-{run_id}.json",
    }
    run, found = check.examine(run_of(task))
    assert found == []
    assert run.phases[0].tasks[0].command[4:6] == ("3", "0.5")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "sub").mkdir()
    (tmp_path / "go").write_text("#!/bin/sh\n")
    (tmp_path / "go").chmod(stat.S_IRWXU)
    return tmp_path


@pytest.mark.parametrize(
    ("task", "place", "said"),
    [
        ({"command": ["pythonn3", "train.py"]}, "command[0]", "nor in {folder}; did you mean 'python3'?"),
        ({"command": ["./og"]}, "command[0]", "there is no program './og' in {folder}"),
        ({"command": ["./train.py"]}, "command[0]", "write"),
        (
            {"command": ["sh", "trian.py"]},
            "command[1]",
            "there is no file {folder}/trian.py; did you mean 'train.py'?",
        ),
        ({"command": ["{python}", "trian.py"]}, "command[1]", "did you mean 'train.py'?"),
        (
            {"command": ["sh", "train.py"], "cwd": "sub"},
            "command[1]",
            "there is no file {folder}/sub/train.py",
        ),
        ({"command": ["go"], "cwd": "sud"}, "cwd", "there is no folder {folder}/sud; did you mean 'sub'?"),
        (
            {"command": ["go"], "stdin": "train"},
            "stdin",
            "there is no file {folder}/train; did you mean 'train.py'?",
        ),
    ],
)
def test_what_is_not_there_is_found_with_the_nearest_name(folder, task, place, said):
    [(path, found)] = check_programs.missing(run_of(task), folder, here=True)
    assert spell(path) == f"phases[0].tasks[0].{place}"
    assert said.replace("write", "[python, ./train.py]").format(folder=folder) in found


@pytest.mark.parametrize(
    "task",
    [
        {"command": ["go"]},
        {"command": ["./go"]},
        {"command": ["../go"], "cwd": "sub"},
        {"command": ["sh", "-c", "no such file"]},
        {"command": ["python3", "-m", "http.server"]},
        {"command": ["python3", "made.py"], "depends_on": ["t0"], "stdin": "made"},
        {"command": ["python3", "{script}"], "args": {"script": "x"}},
        {"command": ["./made"], "cwd": "{run_folder}"},
        {"command": 1},
        {"call": "m:f"},
    ],
)
def test_what_is_there_or_depends_on_the_run_is_no_fault(folder, task):
    assert [*check_programs.missing(run_of(task), folder, here=True)] == []


def test_the_path_of_another_machine_is_not_looked_at(folder):
    tasks = [{"command": ["no-such-program"]}, {"command": ["./no-such-program"]}]
    [(path, _)] = check_programs.missing(run_of(*tasks), folder, here=False)
    assert spell(path) == "phases[0].tasks[1].command[0]"


def test_of_the_runs_of_a_matrix_what_differs_is_looked_at(folder):
    base = run_of({"command": ["no-such"]}, {"command": ["go"]})
    cells = [run_of({"command": ["no-such"]}, {"command": [name]}) for name in ("go", "no-such-either")]
    found = [path for path, _ in check_programs.missing(base, folder, here=True, cells=cells)]
    assert found == [
        ("phases", 0, "tasks", 0, "command", 0),
        (1, "phases", 0, "tasks", 1, "command", 0),
    ]

"""What may stand for a task, and how it is called."""

import os
import types
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest

from governor.tasks.runner_process import calls


class Runs:
    def __init__(self, by=1):
        self.by = by

    def run(self):
        return 2 * self.by


class Arun(Runs):
    run = None

    async def arun(self):
        return 3 * self.by


class Called(Runs):
    run = None

    def __call__(self):
        return 4 * self.by


class CalledLater(Called):
    async def __call__(self):
        return 5 * self.by


class MadeUp:
    """Only its objects tell what they have."""

    def __getattr__(self, name):
        if name == "run":
            return lambda: 6
        raise AttributeError(name)


@dataclass
class Idle:
    by: int = 1

    def start(self): ...


class Point(NamedTuple):
    x: int = 1


class Late(MadeUp):
    def __getattr__(self, name):
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("task", "result"),
    [
        (Runs, 2),
        (Runs(3), 6),
        (partial(Runs, 5), 10),
        (partial(partial(Arun, by=2)), 6),
        (Called, 4),
        (Called(2), 8),
        (CalledLater, 5),
        (MadeUp, 6),
        (partial(max, 1, 2), 2),
        (int, 0),
        (lambda: Idle().by, 1),
    ],
)
def test_functions_and_what_can_be_run_or_called(task, result):
    calls.require_callable(task)
    assert calls.call_it(task, args={}, offers={}) == result


@pytest.mark.parametrize("task", [Idle, partial(Idle, 2), Point])
def test_a_class_that_cannot_be_run_is_refused(task):
    with pytest.raises(TypeError, match=r"is a class without run\(\) or arun\(\): there is nothing to run"):
        calls.require_callable(task, "the task")


@pytest.mark.parametrize("task", [Idle, Late])
def test_where_only_the_object_tells_it_is_refused_when_it_is_called(task):
    with pytest.raises(TypeError, match=r"is a class without run\(\) or arun\(\)"):
        calls.call_it(task, args={}, offers={})


def module_of(monkeypatch, file):
    module = types.ModuleType("of_a_user")
    module.__file__ = str(file)
    monkeypatch.setattr(calls, "sys", types.SimpleNamespace(modules={"of_a_user": module}))


def test_a_copy_with_the_time_of_its_original_is_a_change(monkeypatch, tmp_path):
    file = tmp_path / "mine.py"
    file.touch()
    os.utime(file, (1.0, 1.0))
    module_of(monkeypatch, file)
    assert calls.changed_since(file.stat().st_ctime - 10)
    assert not calls.changed_since(file.stat().st_ctime)


def test_our_own_code_is_that_of_the_driver(monkeypatch, tmp_path):
    module_of(monkeypatch, calls.__file__)
    assert not calls.changed_since(0.0)
    module_of(monkeypatch, __file__)
    assert calls.changed_since(0.0)


@pytest.mark.parametrize(
    ("folder", "changes"), [("data", True), ("purelib", False), ("purelib-of-mine", True)]
)
def test_code_in_the_virtual_environment_is_not_all_installed(monkeypatch, tmp_path, folder, changes):
    paths = {name: str(tmp_path / name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths["data"] = str(tmp_path)
    monkeypatch.setattr(calls.sysconfig, "get_path", paths.__getitem__)
    monkeypatch.setattr(calls, "_folders_of_libraries", calls._folders_of_libraries.__wrapped__)
    file = tmp_path / folder / "mine.py"
    file.parent.mkdir()
    file.touch()
    module_of(monkeypatch, file)
    assert calls.changed_since(0.0) is changes

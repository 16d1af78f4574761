"""The names of `governor`: they are listed, and cost nothing until they are used."""

import inspect
import subprocess
import sys

import governor


def test_the_import_of_governor_loads_nothing_else():
    code = "import sys, governor; print([n for n in sys.modules if n.split('.')[0] in ('asyncio', 'msgspec', 'click')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_the_methods_of_an_executor_take_has_a_public_name():
    taken = inspect.signature(governor.Executor.logs).parameters["asked"].annotation
    assert getattr(governor, taken)(uid="u1", task="fit").task == "fit"


def test_the_public_names_are_listed():
    assert dir(governor) == sorted(governor.__all__)

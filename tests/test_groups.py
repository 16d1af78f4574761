"""Tests of one module run in one worker process, or each worker would start what they share; a crashed worker is replaced."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(8))
def test_tests_of_one_module_run_in_one_worker(tmp_path_factory, number):
    of_all_workers = tmp_path_factory.getbasetemp().parent / "workers of one module"
    with of_all_workers.open("a+") as workers:
        workers.write(f"{os.environ.get('PYTEST_XDIST_WORKER')}\n")
        workers.seek(0)
        assert len(set(workers)) == 1


def test_a_worker_process_that_crashes_neither_hangs_the_session_nor_takes_other_tests_along(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    for number in range(30):
        lines = ["import os, time, pytest", f"pytestmark = pytest.mark.xdist_group('{number}')"]
        lines += [f"def test_{each}(): time.sleep(0.01)" for each in range(1 + number % 5)]
        if number == 14:
            lines += ["def test_that_crashes(): os._exit(3)", "def test_after_it(): pass"]
        (tmp_path / f"test_{number}.py").write_text("\n".join(lines))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "4",
        "--dist=loadgroup",
        "--no-loadscope-reorder",
        tmp_path,
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1, ended.stdout
    assert "1 failed, 91 passed" in ended.stdout
    assert "crashed while running 'test_14.py::test_that_crashes" in ended.stdout

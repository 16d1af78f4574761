"""Tests of one module run in one worker process, or each worker would start what they share."""

import os

import pytest


@pytest.mark.parametrize("number", range(8))
def test_tests_of_one_module_run_in_one_worker(tmp_path_factory, number):
    of_all_workers = tmp_path_factory.getbasetemp().parent / "workers of one module"
    with of_all_workers.open("a+") as workers:
        workers.write(f"{os.environ.get('PYTEST_XDIST_WORKER')}\n")
        workers.seek(0)
        assert len(set(workers)) == 1

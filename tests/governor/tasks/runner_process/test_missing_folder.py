"""Tasks on another machine that want files of the run's folder."""

from __future__ import annotations

import pytest

from governor.failures import reason_of
from governor.tasks.runner_process.missing_folder import ADVICE, with_advice


def reason_for(path, folder):
    with pytest.raises(FileNotFoundError) as caught:
        path.read_text()
    return with_advice(reason_of(caught.value), caught.value, folder=folder)


def test_a_folder_that_is_not_here_is_told_before_the_place(tmp_path):
    there = tmp_path / "runs" / "26g8x5wq"
    reason = reason_for(there / "ppo.zip", there)
    assert "FileNotFoundError" in reason
    assert f"ppo.zip'{ADVICE} (test_missing_folder.py:" in reason
    assert "Traceback" in reason.traceback


def test_other_errors_are_as_they_were(tmp_path):
    assert ADVICE not in reason_for(tmp_path / "ppo.zip", tmp_path)
    assert ADVICE not in reason_for(tmp_path / "data.csv", tmp_path / "runs")
    error = FileNotFoundError("no name")
    assert ADVICE not in with_advice(reason_of(error), error, folder=tmp_path / "runs")

"""The folder of a run that another one resumes."""

import pytest


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    return folder

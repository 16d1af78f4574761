import os
import sys

import pytest

from governor.errors import ConductorError
from governor.processes import user_folder


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = os.getcwd()  # noqa: PTH109  # where the tests run
    yield
    os.chdir(before)


def test_it_is_on_the_import_path_once_and_is_the_working_directory(tmp_path):
    for _ in range(2):
        user_folder.enter(str(tmp_path))
    assert sys.path.count(str(tmp_path)) == 1
    assert sys.path[0] == str(tmp_path)
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109  # what user code asks for


def test_the_reason_names_the_folder_and_what_to_do(tmp_path):
    with pytest.raises(
        ConductorError, match=r"x cannot be entered \(No such file or directory\).*submit the run file"
    ):
        user_folder.enter(str(tmp_path / "x"))
    (tmp_path / "file").touch()
    with pytest.raises(ConductorError, match="Not a directory"):
        user_folder.enter(str(tmp_path / "file"))

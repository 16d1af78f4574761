import errno
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


@pytest.mark.parametrize(
    ("folder", "error", "said"),
    [
        (
            "/home/ada/lab",
            PermissionError(errno.EACCES, "Permission denied"),
            "; let the daemon's user enter it, or submit the run file from a folder that this user can read",
        ),
        (
            "/tmp/lab",
            FileNotFoundError(errno.ENOENT, "No such file"),
            "where it is now (/tmp/ and /var/tmp/ of a service are its own: it sees no folder of others there)",
        ),
        (
            "/srv/lab",
            FileNotFoundError(errno.ENOENT, "No such file"),
            "submit the run file from where it is now",
        ),
    ],
)
def test_what_to_do_is_by_what_is_wrong(folder, error, said, monkeypatch):
    def chdir(_):
        raise error

    with monkeypatch.context() as there:
        there.setattr("os.chdir", chdir)
        with pytest.raises(ConductorError) as told:
            user_folder.enter(folder)
    assert str(told.value).endswith(said)

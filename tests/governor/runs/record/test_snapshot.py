"""The copy of a run's code."""

import os

import pytest

from governor.errors import UsageError
from governor.network import packages
from governor.runs.record import snapshot


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "walker.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".env").write_text("A=1\n")
    return folder


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_all_files_are_copied_but_hidden_folders_caches_and_packages(home, tmp_path):
    for name in (".git/HEAD", "__pycache__/a.pyc", "venv/pyvenv.cfg", "venv/lib/b.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    (home / "data.npy").write_bytes(b"\0" * 10)
    snapshot.take(home, tmp_path / "copy")
    assert names(tmp_path / "copy") == [".env", "agents/walker.py", "data.npy", "run.sh"]
    assert (tmp_path / "copy" / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "copy" / "agents" / "walker.py").stat().st_mode & 0o222 == 0
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    (home / "agents" / "walker.py").write_text("x = 2\n")
    assert (tmp_path / "copy" / "agents" / "walker.py").read_text() == "x = 1\n"


def test_links_and_what_is_no_file(home, tmp_path):
    (tmp_path / "shared.py").write_text("y = 1\n")
    (tmp_path / "data").mkdir()
    (home / "shared.py").symlink_to("../shared.py")
    (home / "data").symlink_to("../data")
    (home / "gone").symlink_to("nowhere")
    os.mkfifo(home / "pipe")
    copy = tmp_path / "below" / "copy"
    copy.parent.mkdir()
    snapshot.take(home, copy)
    assert not (copy / "shared.py").is_symlink()
    assert (copy / "shared.py").read_text() == "y = 1\n"
    assert (copy / "data").readlink() == tmp_path / "data"
    assert not os.path.lexists(copy / "gone")
    assert not os.path.lexists(copy / "pipe")


def test_a_copy_is_shared(home, tmp_path):
    (home / "data").symlink_to(tmp_path)
    snapshot.take(home, tmp_path / "copy")
    snapshot.share(tmp_path / "copy", tmp_path / "other")
    assert names(tmp_path / "other") == names(tmp_path / "copy")
    assert (tmp_path / "other" / "run.sh").samefile(tmp_path / "copy" / "run.sh")
    assert (tmp_path / "other" / "data").readlink() == tmp_path


def test_where_files_cannot_be_linked_they_are_copied(home, tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(1, "Operation not permitted")

    snapshot.take(home, tmp_path / "copy")
    monkeypatch.setattr(os, "link", refuse)
    snapshot.share(tmp_path / "copy", tmp_path / "other")
    assert names(tmp_path / "other") == names(tmp_path / "copy")
    assert (tmp_path / "other" / "run.sh").stat().st_mode & 0o777 == 0o555


def test_what_is_too_much_is_refused_and_names_the_largest(home, tmp_path, monkeypatch):
    with (home / "video.mp4").open("wb") as file:
        file.truncate((100 << 20) + 1)
    with pytest.raises(UsageError) as error:
        snapshot.take(home, tmp_path / "copy")
    assert str(error.value).startswith(f"code: snapshot copies the folder {home}, and that has 104,857,")
    assert " bytes, of which video.mp4 has 104,857,601; 100 MiB (104,857,600 bytes) are allowed" in str(
        error.value
    )
    assert not (tmp_path / "copy").exists()
    (home / "video.mp4").unlink()
    monkeypatch.setattr(packages, "MOST_FILES", 2)
    with pytest.raises(UsageError, match="has more than 2 files"):
        snapshot.take(home, tmp_path / "copy")


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        snapshot.take(tmp_path / "nowhere", tmp_path / "copy")

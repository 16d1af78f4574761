import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from governor.cli import cli, init

KINDS = [*init.RUN]


def invoke(*arguments):
    return CliRunner().invoke(cli, ["init", *map(str, arguments)], prog_name="governor")


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_written_and_has_no_fault(tmp_path, kind):
    folder = tmp_path / "new" / "project"
    done = invoke(folder, "--with", kind)
    names = sorted(path.name for path in folder.iterdir())
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"wrote {', '.join(names)} in {folder}; next:", f"  cd {folder}", f"  {init.RUN[kind]}"
    ]  # fmt: skip
    checked = CliRunner().invoke(cli, ["check", str(folder / "run.yaml")], prog_name="governor")
    assert checked.exit_code == 0, checked.stderr
    assert len((folder / "README.md").read_text().splitlines()) <= 11


def test_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke().stdout.splitlines()[-2:] == ["  governor check run.yaml", "  governor run run.yaml"]
    assert (tmp_path / "run.yaml").is_file()


def test_the_command_for_a_folder_with_a_blank_can_be_pasted(tmp_path):
    assert invoke(tmp_path / "a b").stdout.splitlines()[1] == f"  cd '{tmp_path}/a b'"


def test_no_file_is_overwritten_and_no_other_one_is_written(tmp_path):
    (tmp_path / "run.yaml").write_text("mine")
    done = invoke(tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{tmp_path}/run.yaml exists already, so nothing is written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
    assert (tmp_path / "run.yaml").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        done = invoke(folder)
        assert done.exit_code == 2
        assert "can't be written: Not a directory; name another folder" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.EACCES, 77, "can't be written: Permission denied; name another folder"),
        (errno.ENOSPC, 75, "can't be written: No space left on device; make room on its disk"),
        (errno.EROFS, 75, "can't be written: Read-only file system; mount its disk writable"),
    ],
)
def test_what_can_t_be_written_whole_leaves_nothing(tmp_path, monkeypatch, number, code, said):
    opened = Path.open

    def failing(path, *arguments, **options):
        if path.name == "run.yaml" and arguments == ("x",):
            raise OSError(number, os.strerror(number))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", failing)
    done = invoke(tmp_path / "new" / "project")
    assert (done.exit_code, done.stdout) == (code, "")
    assert f"{tmp_path}/new/project/run.yaml {said}" in done.stderr
    assert list(tmp_path.iterdir()) == []

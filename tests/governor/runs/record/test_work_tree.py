"""Commit, branch and cleanness of the work tree that the code of a run is in."""

import os
import subprocess

import pytest

from governor.runs.record import work_tree


@pytest.fixture
def git(tmp_path):
    def run(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()

    run("init", "--quiet", "--initial-branch", "some/branch")
    return run


def test_commit_and_branch_are_read_from_the_repository(tmp_path, git):
    def found(folder=tmp_path):
        made = work_tree.describe(folder)
        return made["branch"], made["commit"]

    assert found() == ("some/branch", None)
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    assert found(tmp_path / "below") == ("some/branch", commit)
    git("pack-refs", "--all")
    assert found() == ("some/branch", commit)
    git("checkout", "--quiet", "--detach")
    assert found() == (None, commit)


def test_changes_of_known_files_are_uncommitted_staged_or_not(tmp_path, git, monkeypatch):
    for name in ("a.py", "b c.py", "below/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    (tmp_path / "new.py").write_text("")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # of whoever started the daemon

    def found():
        made = work_tree.describe(tmp_path / "below")
        return made["clean"], made["uncommitted"]

    assert found() == (True, [])
    (tmp_path / "b c.py").write_text("x = 2\n")
    assert found() == (False, ["b c.py"])
    git("--git-dir", str(tmp_path / ".git"), "rm", "--quiet", "--cached", "below/d.py")
    assert found() == (False, ["b c.py", "below/d.py"])


def test_without_git_or_in_time_nothing_is_known(tmp_path, git, monkeypatch):
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    assert work_tree.describe(tmp_path)["clean"] is True
    monkeypatch.setattr(work_tree, "MOST_SECONDS", 0.0)
    assert work_tree.describe(tmp_path)["clean"] is None
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert os.environ["PATH"] == str(tmp_path)
    made = work_tree.describe(tmp_path)
    assert (made["clean"], made["uncommitted"], made["branch"]) == (None, [], "some/branch")


def test_a_folder_without_a_repository_has_none(tmp_path):
    assert work_tree.describe(tmp_path) == {"commit": None, "branch": None, "clean": None, "uncommitted": []}

"""The digest of a run's code, and which of its files have changed."""

import os
import tempfile
from pathlib import Path

import pytest

from governor.runs.record import code


def test_data_caches_and_packages_are_no_code(tmp_path):
    (tmp_path / "agent.py").write_text("x = 1\n")
    before = code.digest(tmp_path)
    for folder in ("__pycache__", ".hidden", "env", "state"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.py").write_text("y = 1\n")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "state" / "governor.db").write_bytes(b"")
    (tmp_path / "data.npy").write_bytes(b"1")
    (tmp_path / "large.json").write_bytes(b" " * (1 << 20))
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(tmp_path / "pipe.py")
    assert code.digest(tmp_path) == before


@pytest.mark.parametrize("change", ["content", "name", "another", "place"])
def test_names_and_contents_are_what_counts(tmp_path, change):
    (tmp_path / "below").mkdir()
    (tmp_path / "agent.py").write_text("x = 1\n")
    (tmp_path / "config.yaml").write_text("x: 1\n")
    before = code.digest(tmp_path)
    assert before == code.digest(tmp_path)
    match change:
        case "content":
            (tmp_path / "agent.py").write_text("x = 2\n")  # as long, and perhaps in the same tick
        case "name":
            (tmp_path / "agent.py").rename(tmp_path / "agent2.py")
        case "another":
            (tmp_path / "below" / "b.py").write_text("")
        case "place":
            (tmp_path / "agent.py").rename(tmp_path / "below" / "agent.py")
    assert code.digest(tmp_path) != before


def test_a_file_that_was_read_before_is_not_read_again(tmp_path, monkeypatch):
    path = tmp_path / "agent.py"
    path.write_text("x = 1\n")
    monkeypatch.setattr(code, "_TICK", -1000.0)  # it is old
    before = code.digest(tmp_path)
    monkeypatch.setattr(code.Path, "read_bytes", lambda _: pytest.fail("it was read"))
    assert code.digest(tmp_path) == before
    monkeypatch.undo()
    os.utime(path, ns=(1, 1))
    path.write_text("x = 2\n")
    os.utime(path, ns=(1, 1))
    assert code.digest(tmp_path) != before


def test_what_is_too_much_or_too_slow_is_cut_and_says_so_and_tells_of_no_change(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(name)
    whole = code.digest(tmp_path)
    assert "(3 files)" in whole
    slow = code.digest(tmp_path, seconds=-1.0)
    assert "(the first 0 files)" in slow
    monkeypatch.setattr(code, "MOST_FILES", 2)
    cut = code.digest(tmp_path)
    assert "(the first 2 files)" in cut
    for known, now in ((whole, cut), (cut, whole), (slow, cut), ("", whole), (whole, whole)):
        assert code.changed(tmp_path, known=known, now=now, since=0.0, when="then") is None


def test_a_folder_that_must_not_be_looked_into_is_left_out():
    """As root sees everything, another user looks."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        home = Path(name)
        home.chmod(0o755)
        (home / "agent.py").write_text("x = 1\n")
        before = code.digest(home)
        (home / "closed").mkdir()
        (home / "closed" / "b.py").write_text("")
        (home / "closed").chmod(0o000)
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                os.write(writing, code.digest(home).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        with os.fdopen(reading, "rb") as answer:
            assert answer.read().decode() == before
        (home / "closed").chmod(0o700)


def test_many_changes_are_counted(tmp_path):
    for number in range(25):
        (tmp_path / f"{number:02}.py").write_text("")
    found = code.changed(tmp_path, known="other", now="now", since=0.0, when="it began")
    assert (len(found["files"]), found["more"], found["code"]) == (20, 5, "now")
    assert code.sentence(found).endswith("18.py, 19.py and 5 more have changed since it began")


def test_what_is_gone_cannot_be_named(tmp_path):
    found = code.changed(tmp_path, known="other", now="now", since=0.0, when="run abc began")
    assert code.sentence(found) == "files of its code were moved or removed since run abc began"

import os

import pytest

from governor import files
from tests.support.full_disk import full_beyond


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    files.write_whole(path, b"old")
    with full_beyond(100), pytest.raises(OSError, match="File too large"):
        files.write_whole(path, b"x" * 1000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_no_trace_however_often(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for _ in range(3):
        with full_beyond(6), pytest.raises(OSError, match="File too large"):
            files.append(file, b"other\n")
        assert path.read_bytes() == b"one\n"
    files.append(file, bytearray(b"two\n"))
    os.close(file)
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("name", ["plain", "a/b", "50%", "...", "ä ?*:", "a\0b"])
def test_any_text_makes_a_name(tmp_path, name):
    (tmp_path / f"{files.name_of(name)}.x").touch()
    assert len(list(tmp_path.iterdir())) == 1

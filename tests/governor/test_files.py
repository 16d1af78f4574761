import os

import pytest

from governor import files
from tests.support.full_disk import full_beyond


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    files.write_whole(path, b"old")
    with full_beyond(100), pytest.raises(OSError, match=f"File too large: '{path}'"):
        files.write_whole(path, b"x" * 1000)
    with full_beyond(100), pytest.raises(OSError, match=f"File too large: '{path}'"):
        files.write_lines(path, [b"x" * 1000])
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


@pytest.mark.timeout(30)
def test_what_has_no_end_is_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert files.read_regular(tmp_path / "link") == b"x"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("fifo", "zeros"):
        with pytest.raises(OSError, match="it is no regular file"):
            files.read_regular(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        files.read_regular(tmp_path)


@pytest.mark.parametrize("name", ["plain", "a/b", "50%", "...", "ä ?*:", "a\0b"])
def test_any_text_makes_a_name(tmp_path, name):
    (tmp_path / f"{files.name_of(name)}.x").touch()
    assert len(list(tmp_path.iterdir())) == 1

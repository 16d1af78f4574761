"""The files of a run as the daemon hands them out."""

from __future__ import annotations

import os
import socket

import pytest

from governor.errors import UsageError
from governor.messages.files import PIECE_BYTES
from governor.network import run_files


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "runs" / "abc"
    (run / "episodes").mkdir(parents=True)
    (run / "result.json").write_text("{}")
    (run / "episodes" / "train.jsonl").write_text("1\n2\n")
    (tmp_path / "secret").write_text("s3cret")
    return run


def paths(folder, after=""):
    return [entry.path for entry in run_files.listing(folder, after)[0]]


def test_all_files_are_listed_in_order_and_page_by_page(folder, monkeypatch):
    assert paths(folder) == ["episodes/train.jsonl", "result.json"]
    [first, _], more = run_files.listing(folder, "")
    status = (folder / "episodes/train.jsonl").stat()
    assert not more
    assert (first.size, first.changed, first.number) == (4, status.st_mtime_ns, status.st_ino)
    monkeypatch.setattr(run_files, "MOST", 1)
    entries, more = run_files.listing(folder, "")
    assert more
    assert paths(folder, entries[-1].path) == ["result.json"]
    assert run_files.listing(folder, "result.json") == ((), False)


def test_nothing_but_files_of_the_run_is_listed_or_read(folder, monkeypatch):
    (folder / "link").symlink_to(folder.parents[1] / "secret")
    (folder / "up").symlink_to(folder.parents[1])
    (folder / "self").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(folder)
        listener.bind("sock")  # its path may be too long
    assert paths(folder) == ["episodes/train.jsonl", "result.json"]
    for path in (
        *("link", "up/secret", "self/result.json", "pipe", "sock", "../../secret", "/etc/passwd", "", "."),
        *(
            "episodes",
            "episodes/",
            "episodes/../result.json",
            "episodes//train.jsonl",
            "nothing",
            "a\0b",
            "./result.json",
        ),
    ):
        with pytest.raises(UsageError, match="the run has no file"):
            run_files.piece(folder, path, 0)


def test_a_file_comes_in_pieces(folder):
    (folder / "big").write_bytes(bytes(range(256)) * 5_000)
    parts, offset = [], 0
    while data := run_files.piece(folder, "big", offset).data:
        assert len(data) <= PIECE_BYTES
        parts.append(data)
        offset += len(data)
    assert b"".join(parts) == (folder / "big").read_bytes()
    assert len(parts) == 2
    for offset in (-1, 2**70):
        with pytest.raises(UsageError):
            run_files.piece(folder, "big", offset)


def test_a_run_without_a_folder_has_no_files(tmp_path):
    assert run_files.listing(tmp_path / "gone", "") == ((), False)
    with pytest.raises(UsageError):
        run_files.piece(tmp_path / "gone", "result.json", 0)

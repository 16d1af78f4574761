"""Which files are not what they were."""

from __future__ import annotations

from governor.files import WatchedFiles


def test_a_removed_or_replaced_file_is_reported_and_a_written_one_is_not(tmp_path):
    one, two, folder = tmp_path / "one", tmp_path / "two", tmp_path / "folder"
    for path in (one, two):
        path.touch()
    folder.mkdir()
    files = WatchedFiles(one, two, folder)
    one.write_text("more")
    one.chmod(0o600)
    (folder / "x").touch()
    assert files.removed() == []
    one.unlink()
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(two)
    assert files.removed() == [one, two]
    folder.rename(tmp_path / "elsewhere")
    assert files.removed() == [one, two, folder]


def test_one_that_was_never_there_is_missing(tmp_path):
    assert WatchedFiles(tmp_path / "x").removed() == [tmp_path / "x"]


def test_a_file_that_comes_later_is_watched_from_then_on(tmp_path):
    late = tmp_path / "late"
    files = WatchedFiles(later=[late])
    assert files.removed() == []
    late.touch()
    assert files.removed() == []
    late.unlink()
    assert files.removed() == [late]

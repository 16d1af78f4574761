"""A folder is removed whole, and nothing that its links lead to."""

import os

from governor.journal import removal
from governor.journal.removal import Removal

NOBODY = 65534


def test_what_links_lead_to_stays_and_a_deep_tree_goes(tmp_path):
    other, folder = tmp_path / "other", tmp_path / "run"
    other.mkdir()
    (other / "mine").write_bytes(b"x" * 5000)
    folder.mkdir()
    (folder / "link").symlink_to(other)
    (folder / "hard").hardlink_to(other / "mine")
    (folder / "own").write_bytes(b"x" * 5000)
    deep = folder
    for _ in range(1500 // 5):
        deep /= "d"
    deep.mkdir(parents=True)
    whole, link = removal.size(folder), (folder / "link").lstat().st_blocks * 512
    gone = Removal(folder)
    while gone.step():
        pass
    assert (gone.left, gone.files, gone.bytes) == (False, 3, whole + link)
    assert whole == (other / "mine").stat().st_blocks * 512
    assert (other / "mine").exists()


def test_folders_that_their_owner_may_not_write_to_go_too(short_path):
    folder = short_path / "run"
    for name in ("read_only", "closed"):
        (folder / name / "below").mkdir(parents=True)
        (folder / name / "below" / "file").touch()
    (short_path / "others").mkdir(mode=0o500)
    (folder / "closed" / "link").symlink_to(short_path / "others")
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()
    for path in (short_path, *short_path.rglob("*")):
        os.chown(path, owner, -1, follow_symlinks=False)
    (folder / "read_only").chmod(0o555)
    (folder / "closed").chmod(0)
    os.seteuid(owner)
    try:
        removal.remove(folder)
    finally:
        os.seteuid(os.getuid())
    assert [path.name for path in short_path.iterdir()] == ["others"]
    assert (short_path / "others").stat().st_mode & 0o777 == 0o500

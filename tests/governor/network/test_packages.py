"""The folder of a run file as one file."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from governor.errors import TryAgain, UsageError
from governor.network import packages
from governor.network.packages import PREFIX, PackageStore, pack
from tests.support.full_disk import full_beyond


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "walker.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".env").write_text("A=1\n")
    for left_out in (".git", "__pycache__", "venv", "state"):
        (folder / left_out).mkdir()
        (folder / left_out / "x").write_text("x")
    (folder / "venv" / "pyvenv.cfg").write_text("")
    (folder / "state" / "governor.db").write_text("")
    (folder / "linked.py").symlink_to("agents/walker.py")
    return folder


@pytest.fixture
def store(tmp_path):
    (tmp_path / "state").mkdir()
    return PackageStore(tmp_path / "state")


def packed(folder):
    package, digest, size = pack(folder)
    with package:
        package.seek(0)
        data = package.read()
    assert (len(data), sha256(data).hexdigest()) == (size, digest)
    return data, digest


def sent(store, data, *, digest=None, piece=50):
    digest = digest or sha256(data).hexdigest()
    have = store.store(digest, size=len(data), offset=0, data=b"")
    while have < len(data):
        have = store.store(digest, size=len(data), offset=have, data=data[have : have + piece])
    return digest


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if not path.is_dir()
    }


def test_the_files_arrive_as_they_are(home, store):
    data, digest = packed(home)
    sent(store, data)
    place = store.place_of(PREFIX + digest)
    found = contents(Path(place))
    assert found == {
        "agents/walker.py": "x = 1\n",
        "run.sh": "#!/bin/sh\n",
        ".env": "A=1\n",
        "linked.py": "x = 1\n",
    }
    assert stat.S_IMODE(Path(place, "run.sh").stat().st_mode) & 0o100
    assert not stat.S_IMODE(Path(place, ".env").stat().st_mode) & 0o100
    assert sorted(path.name for path in Path(place).parent.iterdir()) == [digest]


def test_the_same_files_are_the_same_package_whenever_they_were_written(home):
    before = packed(home)[1]
    os.utime(home / "run.sh", (1, 1))
    assert packed(home)[1] == before
    (home / "run.sh").chmod(0o644)
    assert packed(home)[1] != before


def test_a_part_that_comes_twice_or_late_changes_nothing(home, store):
    data, digest = packed(home)
    store.store(digest, size=len(data), offset=0, data=data[:20])
    for offset, part in ((0, data[:20]), (30, data[30:40]), (20, data[20:] + b"more")):
        assert store.store(digest, size=len(data), offset=offset, data=part) == 20
    assert store.store(digest, size=len(data), offset=20, data=data[20:]) == len(data)
    assert store.store(digest, size=len(data), offset=0, data=b"") == len(data)


def test_one_that_was_damaged_begins_anew(home, store):
    data, digest = packed(home)
    with pytest.raises(UsageError, match="damaged on its way"):
        sent(store, data[:-1] + b"x", digest=digest)
    with pytest.raises(UsageError, match=f"does not have {PREFIX}{digest}"):
        store.place_of(PREFIX + digest)
    assert store.store(digest, size=len(data), offset=0, data=b"") == 0
    sent(store, data)
    assert store.place_of(PREFIX + digest).endswith(digest)


def archive(*members, kind=tarfile.REGTYPE, **of_all):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            for key, value in of_all.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        archive(("../out", b"x")),
        archive(("/tmp/out", b"x"), ("../../out", b"y")),
        archive(("a", b"x"), ("a/b", b"y")),
        archive(("a", b"x"), ("a", b"y")),
        archive(("link", b""), kind=tarfile.SYMTYPE, linkname="/etc/passwd"),
        archive(("link", b""), kind=tarfile.LNKTYPE, linkname="../../governor.db"),
        archive(("pipe", b""), kind=tarfile.FIFOTYPE),
        archive(("device", b""), kind=tarfile.CHRTYPE),
        b"no archive",
        archive(("cut", b"x" * 10_000))[:-30],
        gzip.compress(b"\0" * 100),
    ],
    ids=[
        "up",
        "above",
        "below a file",
        "twice",
        "link",
        "hard link",
        "pipe",
        "device",
        "none",
        "cut",
        "empty",
    ],
)
def test_nothing_gets_out_of_its_folder(store, tmp_path, data):
    """What cannot be unpacked is refused; an empty archive does no harm."""
    try:
        assert contents(Path(store.place_of(PREFIX + sent(store, data)))) == {}
    except UsageError:
        assert [*(tmp_path / "state" / "packages").iterdir()] == []
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_a_package_is_bounded_packed_and_unpacked(home, store, monkeypatch):
    bomb = archive(("zeros", b"\0" * 2_000_000))
    assert len(bomb) < 10_000
    data, _ = packed(home)
    monkeypatch.setattr(packages, "MOST_BYTES", 1_000_000)
    with pytest.raises(UsageError, match="at most 10,000 files"):
        sent(store, bomb, piece=10_000)
    (home / "data").write_bytes(b"x" * 1_000_001)
    with pytest.raises(UsageError, match=r"of which data has 1,000,001; 0 MiB .1,000,000 bytes. are allowed"):
        pack(home)
    (home / "data").unlink()
    monkeypatch.setattr(packages, "MOST_FILES", 3)
    with pytest.raises(UsageError, match="more than 3 files"):
        pack(home)
    with pytest.raises(UsageError, match="at most 3 files"):
        sent(store, data)
    for size in (-1, packages._LARGEST + 1):
        with pytest.raises(UsageError, match="a package has at most"):
            store.store("0" * 64, size=size, offset=0, data=b"")


def test_a_link_to_a_folder_is_named(home):
    (home / "more").symlink_to("agents")
    with pytest.raises(UsageError, match="more is a link to a folder"):
        pack(home)


@pytest.fixture
def as_somebody(short_path):
    """A folder of a user without privileges, whom the test is from then on."""
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(short_path, owner, -1)
    os.seteuid(owner)
    yield short_path
    os.seteuid(os.getuid())


def test_a_file_that_must_not_be_read_is_named_and_such_a_folder_is_left_out(as_somebody):
    for mode in (0o000, 0o311, 0o644):
        (as_somebody / f"closed-{mode}").mkdir()
        (as_somebody / f"closed-{mode}" / "x").write_text("")
        (as_somebody / f"closed-{mode}").chmod(mode)
    (as_somebody / "run.yaml").write_text("x")
    package, *_ = pack(as_somebody)
    with package:
        package.seek(0)
        with tarfile.open(fileobj=package, mode="r:gz") as tar:
            assert tar.getnames() == ["run.yaml"]
    (as_somebody / "key").touch(mode=0o000)
    with pytest.raises(
        UsageError, match=rf"{as_somebody} can't be sent to the daemon: .*/key: Permission denied"
    ):
        pack(as_somebody)


def test_files_that_go_meanwhile_are_not_in_it(home, monkeypatch):
    """While the folder is walked: one that was seen, and a folder that was chosen; and before it is packed."""
    (home / "seen").write_text("x")
    (home / "chosen").mkdir()
    (home / "listed").write_text("x")
    is_file, is_own, own_files = Path.is_file, packages.is_own, packages.own_files

    def remove_seen(path):
        found = is_file(path)
        if path.name == "seen":
            path.unlink()
        return found

    def remove_chosen(folder):
        found = is_own(folder)
        if folder.name == "chosen":
            folder.rmdir()
        return found

    def remove_listed(folder, **more):
        found = own_files(folder, **more)
        (home / "listed").unlink()
        return found

    monkeypatch.setattr(packages.Path, "is_file", remove_seen)
    monkeypatch.setattr(packages, "is_own", remove_chosen)
    monkeypatch.setattr(packages, "own_files", remove_listed)
    package, *_ = pack(home)
    with package:
        package.seek(0)
        with tarfile.open(fileobj=package, mode="r:gz") as tar:
            assert {*tar.getnames()}.isdisjoint({"seen", "chosen", "listed"})
    assert {*map(str, os.listdir(home))}.isdisjoint({"seen", "chosen", "listed"})  # noqa: PTH208


@pytest.mark.parametrize("digest", ["", "../x", "A" * 64, "0" * 63, "0" * 64 + "/"])
def test_a_digest_is_no_path(store, digest):
    with pytest.raises(UsageError, match="no digest of a package"):
        store.place_of(PREFIX + digest)
    with pytest.raises(UsageError, match="no digest of a package"):
        store.store(digest, size=1, offset=0, data=b"x")


def test_old_packages_go_when_a_new_one_comes(home, store, tmp_path):
    first = sent(store, packed(home)[0])
    left = store.store("0" * 64, size=100, offset=0, data=b"x")
    assert left == 1
    folder = tmp_path / "state" / "packages"
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    (home / "new.py").write_text("")
    second = sent(store, packed(home)[0])
    assert [path.name for path in folder.iterdir()] == [second]
    os.utime(folder / second, (1, 1))
    store.place_of(PREFIX + second)  # it is used again
    assert (folder / second).stat().st_mtime > 1
    assert first != second


def test_a_full_disk_while_it_arrives_is_a_reason_to_try_again_and_no_byte_is_sent_twice(home, store):
    data, digest = packed(home)
    with full_beyond(70), pytest.raises(TryAgain, match="can't be stored: File too large"):
        sent(store, data)
    have = store.store(digest, size=len(data), offset=0, data=b"")
    assert have == 70
    assert store.store(digest, size=len(data), offset=have, data=data[have:]) == len(data)
    assert contents(Path(store.place_of(PREFIX + digest)))["agents/walker.py"] == "x = 1\n"


def test_a_full_disk_while_it_is_unpacked_leaves_nothing(home, store, tmp_path):
    (home / "zeros").write_bytes(bytes(100_000))
    data, digest = packed(home)
    with full_beyond(50_000), pytest.raises(TryAgain, match="can't be stored"):
        sent(store, data)
    assert list((tmp_path / "state" / "packages").iterdir()) == []
    with pytest.raises(UsageError, match="submit the run again"):
        store.place_of(PREFIX + digest)

"""The daemon's folder of keys."""

from __future__ import annotations

import stat

import pytest
from click.testing import CliRunner

from governor.cli import cli
from governor.errors import ConfigError, UsageError
from governor.network.keys import PUBLIC, SERVER_KEY, KeyFolder
from transport.network.curve import KeyPair, Member

ALICE, BOB = KeyPair.new(), KeyPair.new()


@pytest.fixture
def keys(tmp_path):
    return KeyFolder(tmp_path / "state" / "keys", {})


def test_the_server_has_one_pair_that_nobody_else_reads(keys):
    pair = keys.server()
    assert keys.server() == pair
    assert keys.server_public() == pair.public
    assert stat.S_IMODE(keys.path.stat().st_mode) == stat.S_IMODE(keys.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((keys.path / SERVER_KEY).stat().st_mode) == 0o600
    assert KeyPair.of((keys.path / SERVER_KEY).read_text().strip()) == pair


def test_a_secret_that_others_can_read_is_refused(keys):
    keys.server()
    (keys.path / SERVER_KEY).chmod(0o640)
    with pytest.raises(ConfigError, match="others can read this secret key"):
        keys.server()


@pytest.mark.parametrize("content", [b"", b"no key", b"\xff\xfe"])
def test_a_secret_that_is_none_is_named(keys, content):
    keys.server()
    (keys.path / SERVER_KEY).write_bytes(content)
    with pytest.raises(ConfigError, match=SERVER_KEY):
        keys.server()


def test_a_credential_comes_first_and_its_public_key_is_there_for_others(tmp_path):
    pair, credentials = KeyPair.new(), tmp_path / "credentials"
    credentials.mkdir()
    (credentials / SERVER_KEY).write_text(pair.secret + "\n")
    (credentials / SERVER_KEY).chmod(0o440)  # as systemd has it with an access list
    folder = tmp_path / "keys"
    assert KeyFolder(folder, {"CREDENTIALS_DIRECTORY": str(credentials)}).server() == pair
    assert sorted(path.name for path in folder.iterdir()) == [PUBLIC]
    assert KeyFolder(folder, {}).server_public() == pair.public


def test_members_are_added_and_removed(keys):
    assert keys.members() == ()
    keys.add("bob", role="viewer", public=BOB.public)
    keys.add("alice", role="operator", public=ALICE.public)
    assert keys.members() == (
        Member(name="alice", role="operator", public=ALICE.public),
        Member(name="bob", role="viewer", public=BOB.public),
    )
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in keys.path.glob("*.toml"))
    for name, public in (("bob", KeyPair.new().public), ("carol", BOB.public)):
        with pytest.raises(UsageError, match=r"'bob' is in .*governor keys remove bob"):
            keys.add(name, role="viewer", public=public)
    keys.remove("bob")
    assert [member.name for member in keys.members()] == ["alice"]
    with pytest.raises(UsageError, match="no key 'bob'"):
        keys.remove("bob")


@pytest.mark.parametrize("name", ["", "Bob", "1000", "../bob", "a b", "server", "others", "b" * 64, ".bob"])
def test_a_name_is_a_word_and_no_path(keys, name):
    with pytest.raises(UsageError, match="is no name for a key"):
        keys.remove(name)


def test_all_faults_are_named_and_none_of_the_keys_counts(keys):
    keys.add("alice", role="operator", public=ALICE.public)
    broken = {
        "bob": f'role = "king"\npublic = "{BOB.public}"\n',
        "carol": 'role = "viewer"\npublic = "short"\n',
        "dan": "role = viewer\n",
        "eve": f'role = "viewer"\npublic = "{ALICE.public}"\n',
        "frank": f'role = "viewer"\npublic = "{BOB.public}"\nmore = 1\n',
        "Grace": f'role = "viewer"\npublic = "{BOB.public}"\n',
        "heidi": 'role = "viewer"\npublic = 1\n',
    }
    for name, text in broken.items():
        (keys.path / f"{name}.toml").write_text(text)
    (keys.path / "ivan.toml").mkdir()
    (keys.path / "judy.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError) as caught:
        keys.members()
    faults = "\n".join(caught.value.faults)
    for wanted in (
        "bob.toml: role must be one of viewer, operator, not 'king'",
        "carol.toml: a key has 40 characters of Z85",
        "dan.toml: ",
        "alice and eve have the same key",
        "frank.toml: unknown key 'more'",
        "Grace.toml: 'Grace' is no name",
        "heidi.toml: public must be a key, not 1",
        "ivan.toml can't be read: Is a directory",
        "judy.toml is no text in UTF-8",
    ):
        assert wanted in faults


@pytest.mark.parametrize("endpoint", ["tcp://*:5555", "tcp://a b:5555", "ipc:///tmp/b"])
def test_a_context_leads_to_a_machine(keys, tmp_path, endpoint):
    out = tmp_path / "q.toml"
    asked = ["keys", "new", "q", "--role", "viewer", "--keys", str(keys.path), "--out", str(out)]
    done = CliRunner().invoke(cli, [*asked, "--endpoint", endpoint])
    assert (done.exit_code, "--endpoint: " in done.output) == (2, True)
    assert not out.exists()
    assert keys.members() == ()


def test_a_folder_of_keys_that_is_not_there_is_told(tmp_path):
    listed = CliRunner().invoke(cli, ["keys", "list", "--keys", str(tmp_path / "none")])
    assert f"nobody comes in (there is no folder {tmp_path / 'none'})" in listed.output


def test_what_can_not_be_read_or_written_is_named(tmp_path):
    file, keys = tmp_path / "file", tmp_path / "keys"
    file.touch()

    def told(*arguments):
        done = CliRunner().invoke(cli, ["keys", *map(str, arguments)], prog_name="governor")
        return done.exit_code, done.stderr

    assert told("list", "--keys", file) == (
        78,
        f"governor: error: {file}: bad configuration\n  can't be read: Not a directory\n",
    )
    code, text = told("remove", "bob", "--keys", file)
    assert (code, text.splitlines()[1:]) == (78, ["  can't be removed: Not a directory"])
    out = tmp_path / ("b" * 300)
    code, text = told(
        "new", "bob", "--role", "viewer", "--endpoint", "tcp://a:5", "--keys", keys, "--out", out
    )
    assert (code, "can't be written: File name too long; choose another one (--out)" in text) == (2, True)
    assert KeyFolder(keys, {}).members() == ()

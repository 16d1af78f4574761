import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from governor import locations
from governor.errors import ConfigError, NotPermitted, Unreachable


def test_find_broker(tmp_path, monkeypatch):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    assert locations.find_broker("tcp://127.0.0.1:5", {"GOVERNOR_BROKER": "ipc:///b"}) == "tcp://127.0.0.1:5"
    assert locations.find_broker(None, {"GOVERNOR_BROKER": "/b"}) == "ipc:///b"
    monkeypatch.setattr(locations, "NAME", "rg-test")
    with pytest.raises(Unreachable, match="rg-test"):
        locations.find_broker(None, environ)
    folder = tmp_path / "rg-test"
    folder.mkdir()
    (folder / "broker.sock").write_text("no socket")
    with pytest.raises(Unreachable):
        locations.find_broker(None, environ)
    (folder / "broker.sock").unlink()
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("broker.sock")
        assert locations.find_broker(None, environ) == f"ipc://{folder}/broker.sock"


def test_a_daemon_of_another_user_does_not_hide_one_s_own(tmp_path, monkeypatch):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir()
    monkeypatch.setattr(locations, "runtime_dirs", lambda _environ: [theirs, ours])
    may_not_search(theirs, monkeypatch)
    with pytest.raises(
        NotPermitted, match=rf"{theirs}/broker.sock is another user's: .* a daemon of your own"
    ):
        locations.find_broker(None, {})
    monkeypatch.chdir(ours)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("broker.sock")
        assert locations.find_broker(None, {}) == f"ipc://{ours}/broker.sock"


def may_not_search(folder, monkeypatch):
    """Root may search all folders, so the system's answer is made up."""
    stat = Path.stat

    def refused(path, **options):
        if path.parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)


async def test_a_named_socket_of_another_user_is_told_from_one_without_a_daemon(tmp_path, monkeypatch):
    async def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(asyncio, "open_unix_connection", refused)
    with pytest.raises(NotPermitted, match=rf"{tmp_path}/broker.sock is another user's"):
        await locations.refuse_stale_socket(f"ipc://{tmp_path}/broker.sock")


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)  # as in a container
    with pytest.raises(
        ConfigError, match=r"HOME: .*\n  is not set, and the system knows no home .* of uid \d+: set it"
    ):
        locations.default_state_dir({})
    with pytest.raises(ConfigError, match="HOME"):
        locations.secret_folders({})
    assert locations.default_state_dir({"XDG_STATE_HOME": "/state"}) == Path("/state/run-governor")
    assert locations.runtime_dirs({"XDG_RUNTIME_DIR": "/run/user/7"})[0] == Path("/run/user/7/run-governor")


@pytest.mark.parametrize("host", ["run-governor.invalid", "two..dots", 64 * "a"])
async def test_a_machine_that_has_no_address_is_named_at_once(host):
    with pytest.raises(
        Unreachable, match=f"{host!r} in tcp://{host}:5555 (is the name of no machine|can't be looked up)"
    ):
        await locations.refuse_unknown_host(f"tcp://{host}:5555", patience=0)


async def test_a_name_server_that_is_away_is_asked_again(monkeypatch):
    answers = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), []]

    async def getaddrinfo(_host, _port):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    await locations.refuse_unknown_host("tcp://machine:5555", patience=10)
    assert not answers


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://[::1]:5555", "ipc:///run/broker.sock"])
async def test_addresses_and_paths_need_no_name_server(endpoint):
    await locations.refuse_unknown_host(endpoint, patience=0)

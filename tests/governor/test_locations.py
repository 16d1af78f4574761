import socket

import pytest

from governor import locations
from governor.errors import Unreachable


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

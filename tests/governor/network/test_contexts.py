"""A client's contexts."""

from __future__ import annotations

import math
import stat
from pathlib import Path

import pytest

from governor.errors import Unreachable, UsageError
from governor.executor import Executor
from governor.network import contexts
from governor.network.contexts import Context
from transport.network.curve import ClientKeys, KeyPair

CONTEXT = Context(
    endpoint="tcp://host:5555", keys=ClientKeys(server=KeyPair.new().public, pair=KeyPair.new())
)


@pytest.fixture
def environ(tmp_path):
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_a_context_is_found_by_its_name_and_by_its_path(environ, tmp_path):
    path = contexts.folder(environ) / "lab.toml"
    CONTEXT.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert contexts.names(environ) == ["lab"]
    assert contexts.load("lab", environ) == contexts.load(str(path), environ) == CONTEXT
    assert CONTEXT.keys.pair.secret not in repr(CONTEXT)


def test_one_that_is_not_there_is_told_with_those_that_are(environ):
    with pytest.raises(UsageError, match=r"no context 'home'.*known ones: none"):
        contexts.load("home", environ)
    CONTEXT.write(contexts.folder(environ) / "lab.toml")
    with pytest.raises(UsageError, match="known ones: lab"):
        contexts.load("home", environ)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (('endpoint = "tcp://host:5555"', 'endpoint = "host"'), "expected ipc:///path or tcp://address:port"),
        (('endpoint = "tcp://host:5555"', ""), "endpoint must be a text, not None"),
        (("server", "sever"), "server must be a text"),
        (('server = "', 'server = "x'), "40 characters of Z85"),
        (('secret = "', 'secret = "x'), "40 characters of Z85"),
        (("secret", "more = 1\nsecret"), "unknown key 'more'"),
        (("endpoint", "endpoint ="), "lab.toml"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_without_its_secret(environ, change, wanted):
    path = contexts.folder(environ) / "lab.toml"
    CONTEXT.write(path)
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(UsageError, match=r"the context .*lab\.toml: ") as caught:
        contexts.load("lab", environ)
    assert wanted in str(caught.value)
    assert CONTEXT.keys.pair.secret not in str(caught.value)


def test_one_that_others_can_read_is_refused(environ):
    path = contexts.folder(environ) / "lab.toml"
    CONTEXT.write(path)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others can read it: `chmod 600"):
        contexts.load("lab", environ)


async def test_where_an_executor_finds_its_daemon(environ, monkeypatch):
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    CONTEXT.write(contexts.folder(environ) / "lab.toml")
    named = Executor(context="lab")
    assert (named.endpoint, named.keys) == ("tcp://host:5555", CONTEXT.keys)
    monkeypatch.setenv(contexts.VARIABLE, "")
    with pytest.raises(Unreachable, match="no daemon answers"):
        Executor()
    monkeypatch.setenv(contexts.VARIABLE, "lab")
    assert Executor().endpoint == "tcp://host:5555"
    given = Executor("ipc:///tmp/b")
    assert (given.endpoint, given.keys) == ("ipc:///tmp/b", None)
    with pytest.raises(UsageError, match="both say where the daemon is"):
        Executor("ipc:///tmp/b", context="lab")
    assert Executor(Path("/tmp/b")).endpoint == "ipc:///tmp/b"
    assert Executor(context=contexts.folder(environ) / "lab.toml").endpoint == "tcp://host:5555"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"broker": 5}, "broker is a text, or a path, not 5"),
        ({"broker": None, "context": 5}, "context is a text, or a path, not 5"),
        ({"timeout": math.inf}, "timeout is the deadline of each call, in seconds, and not inf"),
        ({"timeout": None}, "timeout is a number of seconds, not None"),
        ({"patience": math.nan}, "patience is a number of seconds, not nan"),
        ({"service": 5}, "service is the uid of a RunGovernor, not 5"),
        ({"broker": "tcp://*:5555"}, "is no name or address of a machine to connect to"),
    ],
)
def test_an_argument_of_an_executor_that_makes_no_sense_is_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        Executor(**{"broker": "ipc:///tmp/b", **arguments})


async def test_a_run_is_waited_for_by_its_id():
    with pytest.raises(UsageError, match="wait takes the id of a run, not None"):
        await Executor("ipc:///tmp/b").wait(None)

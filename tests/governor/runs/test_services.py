"""Ports of services, and who waits for them."""

import asyncio
import itertools
import socket

import pytest

from governor.run_file.load import parse
from governor.runs import services
from governor.runs.assignment import Assignment
from governor.runs.services import Services, free_port, with_ports


def assignment(**sections):
    made = {name: {"command": ["x"], **section} for name, section in sections.items()}
    task = {"id": "a", "call": "m:f", "args": {"ports": [f"{{services.{name}.port}}" for name in sections]}}
    data = {
        "name": "r",
        "conductors": {"services": made},
        "phases": [{"name": "p", "tasks": [task]}],
    }
    return Assignment(uid="u", run=parse(data), folder="/")


def test_ports_of_a_run_are_fixed_or_free_and_filled_in():
    made = with_ports(assignment(a={"port": 8000}, b={}, c={}))
    assert made.ports["a"] == 8000
    assert len({*made.ports.values()}) == 3
    [spec] = made.tasks(0, done={}).tasks
    assert spec.args == {"ports": [str(port) for port in made.ports.values()]}
    assert made.settings("service.b") == {
        "command": ["x"],
        "cwd": None,
        "env": {},
        "port": made.ports["b"],
        "ready": None,
    }


def test_a_run_without_services_is_as_it_was():
    made = Assignment(uid="u", run=parse({"name": "r", "phases": [{"name": "p", "tasks": [{"id": "a", "call": "m:f"}]}]}), folder="/")  # fmt: skip
    assert with_ports(made) is made


def test_a_port_that_is_taken_is_not_chosen(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(services, "_numbers", itertools.count(0))
        monkeypatch.setattr(services, "LOWEST", port)
        monkeypatch.setattr(services, "_first_ephemeral", lambda: port + 1)
        assert free_port() not in (0, port), "one that the system chooses"


async def test_others_wait_until_all_are_ready_and_again_after_a_death():
    followed = Services(assignment(a={}, b={}))
    waiting = asyncio.create_task(followed.wait())
    for conductor in ("environment.a", "service.a"):
        followed.is_ready(conductor)
        await asyncio.sleep(0)
        assert not waiting.done()
    followed.is_ready("service.b")
    await waiting
    followed.is_gone("environment.a")
    await followed.wait()
    followed.is_gone("service.b")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await followed.wait()

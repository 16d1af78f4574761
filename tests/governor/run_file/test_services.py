"""What a run file says of services, and where it may name their ports."""

import copy

import pytest

from governor.run_file import check, check_programs, services
from governor.units.sections import spell
from tests.support.run_files import faults_in

GOOD = {
    "name": "r",
    "conductors": {
        "services": {
            "model": {
                "command": ["python3", "serve.py", "--port", "{port}"],
                "env": {"SEED": 1},
                "ready": {"http": "/health"},
            },
            "fixed": {"command": ["python3", "serve.py"], "ready": {"port": 8000}},
        },
        "environments": {"game": {"entry": "http://127.0.0.1:{services.fixed.port}/game"}},
        "agents": {
            "llm": {"entry": "openai:x", "params": {"base_url": "http://127.0.0.1:{services.model.port}/v1"}}
        },
    },
    "phases": [
        {
            "name": "p",
            "simulate": {
                "environment": "game",
                "agents": ["llm"],
                "episodes": 2,
                "transport": "in_process",
            },
        },
        {
            "name": "q",
            "tasks": [
                {"id": "a", "call": "m:f", "args": {"ports": ["{services.model.port}"]}},
                {"id": "b", "command": ["curl", "localhost:{services.model.port}/{run_id}"]},
            ],
        },
    ],
}


def changed(path, value):
    def copy(data, steps):
        if not steps:
            return value
        if isinstance(data, list):
            return [copy(one, steps[1:]) if index == steps[0] else one for index, one in enumerate(data)]
        return {**data, steps[0]: copy(data.get(steps[0], {}), steps[1:])}

    return copy(GOOD, path)


def test_a_run_with_services_is_good_and_they_are_its_first_conductors():
    run, found = check.examine(GOOD)
    assert found == []
    assert [(each.name, each.kind) for each in run.to_plan("u").conductors][:2] == [
        ("service.model", "service"),
        ("service.fixed", "service"),
    ]
    assert [section.fixed_port for section in run.conductors.services.values()] == [None, 8000]


def test_ports_are_filled_in_everywhere_and_other_placeholders_stay():
    filled = services.with_ports(GOOD, {"model": 20001, "fixed": 8000}.get)
    assert filled["conductors"]["environments"]["game"]["entry"] == "http://127.0.0.1:8000/game"
    tasks = filled["phases"][1]["tasks"]
    assert tasks[0]["args"] == {"ports": ["20001"]}
    assert tasks[1]["command"] == ["curl", "localhost:20001/{run_id}"]
    assert filled["conductors"]["services"]["model"]["command"][-1] == "{port}"
    assert services.with_ports("{services.model.port} {{services.model.port}}", lambda _: None) == (
        "{services.model.port} {{services.model.port}}"
    )


SERVICE = ("conductors", "services", "model")
LLM = ("conductors", "agents", "llm", "params", "base_url")


@pytest.mark.parametrize(
    ("path", "value", "place", "said"),
    [
        ((*SERVICE, "ready"), {}, ".ready", "must have one of 'http', 'port' and 'line'"),
        ((*SERVICE, "ready"), {"http": "/x", "line": "y"}, ".ready", "must have one of"),
        ((*SERVICE, "ready"), {"http": "health"}, ".ready.http", "must be a path, as /health, or a URL"),
        ((*SERVICE, "ready"), {"line": "("}, ".ready.line", "is no regular expression"),
        ((*SERVICE, "port"), 0, ".port", "greater than or equal to 1"),
        ((*SERVICE, "command"), "serve", ".command", "must be a list of words"),
        ((*SERVICE, "command"), ["serve", "{prt}"], ".command[1]", "unknown placeholder {prt}; did you mean 'port'?"),
        ((*SERVICE, "ready"), {"http": "/{x}"}, ".ready.http", "unknown placeholder {x}"),
        ((*SERVICE, "comand"), ["x"], ".comand", "did you mean 'command'?"),
        ((*SERVICE, "cwd"), "{services.mode.port}", ".cwd", "unknown service 'mode'; did you mean 'model'?"),
        (LLM, "http://h:{services.modle.port}", LLM, "unknown service 'modle'; did you mean 'model'?"),
        (LLM, "http://h:{services.model.prt}", LLM, "a service has {services.NAME.port}"),
    ],
)  # fmt: skip
def test_faults_have_their_place(path, value, place, said):
    [(found, message)] = faults_in(changed(path, value))
    assert spell(found) == (spell(SERVICE) + place if isinstance(place, str) else spell(place))
    assert said in message


def test_two_ports_are_a_fault():
    [(path, message)] = faults_in(changed(("conductors", "services", "fixed", "port"), 8001))
    assert spell(path) == "conductors.services.fixed"
    assert message == "has 'port: 8001', and is ready at 'port: 8000'"


def test_a_service_that_there_is_not_is_told_where_there_is_none():
    data = {"name": "r", "phases": [{"name": "p", "tasks": [{"id": "a", "call": "m:f", "args": {"x": "{services.m.port}"}}]}]}  # fmt: skip
    [(_, message)] = faults_in(data)
    assert message == "unknown service 'm'; the run has no conductors.services"


def test_its_program_is_looked_for(tmp_path):
    found = [*check_programs.missing(GOOD, tmp_path, here=False)]
    places = {spell(path) for path, _ in found}
    assert places == {f"conductors.services.{name}.command[1]" for name in ("model", "fixed")}


def test_data_that_contain_themselves_or_are_nested_deeply_are_no_trouble():
    deep: object = "{services.model.port}"
    for _ in range(5000):
        deep = [deep]
    data = copy.deepcopy(GOOD)
    data["phases"] += [data, deep]
    assert faults_in(data)
    assert len([*services.used(deep)]) == 1

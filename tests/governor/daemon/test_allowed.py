"""A daemon that restricts which code runs may name."""

from __future__ import annotations

import os

import pytest

from governor.daemon.submission.allowed import EMPTY, AllowedEntries, named
from governor.errors import NotPermitted, RunFileError
from governor.run_file.load import parse
from tests.support.daemon.api_world import CONFIG, RUN, open_api

WHOLE = {
    "name": "whole",
    "x-common": {"entry": "left:out"},
    "seed": 1,
    "labels": {"entry": "left:out"},
    "env": {"PYTHONPATH": "/x", "LD_PRELOAD": "/y.so", "SEED": "1"},
    "secrets": {"PATH": "s", "OPENAI_API_KEY": "s"},
    "env_file": ".env",
    "conductors": {
        "environments": {
            "params": {
                "entry": "gymnasium:FrozenLake-v1",
                "params": {"entry": "left:out"},
                "wrappers": ["w:One", {"entry": "w:Two", "params": {"call": "left:out"}}],
            }
        },
        "agents": {"labels": {"entry": "a:Walker"}},
        "services": {"args": {"command": ["serve", "--call", "x"], "env": {"PYTHONHOME": "/"}}},
    },
    "phases": [
        {
            "name": "params",
            "simulate": {"environment": "params", "agents": ["labels"], "episodes": 1},
            "until": [{"entry": "u:Until"}],
        },
        {
            "name": "q",
            "tasks": [
                {"id": "t", "call": "t:f", "args": {"entry": "left:out"}},
                {"id": "c", "command": ["run.sh"], "env": {"BASH_ENV": "x"}},
            ],
        },
    ],
    "hooks": {"on_end": ["tell", "me"], "on_stall": "https://x", "on_limit": {"command": ["cry"]}},
}
NAMED = {
    "env": ["PYTHONPATH", "LD_PRELOAD"],
    "secrets": ["PATH"],
    "env_file": [".env"],
    "conductors.environments.params.entry": ["gymnasium:FrozenLake-v1"],
    "conductors.environments.params.wrappers[0].entry": ["w:One"],
    "conductors.environments.params.wrappers[1].entry": ["w:Two"],
    "conductors.agents.labels.entry": ["a:Walker"],
    "conductors.services.args.command": ["command:serve"],
    "conductors.services.args.env": ["PYTHONHOME"],
    "phases[0].until[0].entry": ["u:Until"],
    "phases[1].tasks[0].call": ["t:f"],
    "phases[1].tasks[1].command": ["command:run.sh"],
    "phases[1].tasks[1].env": ["BASH_ENV"],
    "hooks.on_end": ["command:tell"],
    "hooks.on_limit": ["command:cry"],
}


def test_all_that_a_run_names_is_found_whatever_its_sections_are_called():
    found = {}
    for one in named(parse(WHOLE)):
        found.setdefault(one.place, []).append(one.text)
    assert found == NAMED


def with_task(**task):
    return parse({"name": "r", "phases": [{"name": "p", "tasks": [{"id": "t", **task}]}]})


def playing(environment="e:E", agent="a:A"):
    simulate = {"environment": "e", "agents": ["a"], "episodes": 1, "transport": "in_process"}
    params = {"base_url": "http://x/v1"} if agent.startswith("openai:") else {}
    made = {"entry": agent, "params": params}
    conductors = {"environments": {"e": {"entry": environment}}, "agents": {"a": made}}
    return parse({"name": "r", "conductors": conductors, "phases": [{"name": "p", "simulate": simulate}]})


CALLS = with_task(call="lab.work:f")
MODULES = [
    (["lab.work:f"], CALLS, True),
    (["lab.work:*"], CALLS, True),
    (["lab.*:f"], CALLS, True),
    (["*:*"], CALLS, True),
    (["*"], CALLS, True),
    (["LAB.work:f"], CALLS, False),
    (["lab.work:ff", "lab.work"], CALLS, False),
    (["lab.wor?:f", "lab.wor[k]:f"], CALLS, False),
    (["lab:*"], CALLS, False),
    ([], CALLS, False),
    (["lab.work:*"], with_task(call="lab.work:os.system"), False),
    (["lab.work:os.*"], with_task(call="lab.work:os.system"), True),
    (["gymnasium:*", "*:*"], with_task(call="gymnasium:register"), False),
    (["gymnasium:register"], with_task(call="gymnasium:register"), True),
    (["e:*", "a:*"], playing(), True),
    (["e:*", "a:*"], playing(environment="e:os.system"), False),
    (["e:*", "a:*"], playing(agent="a:os.system"), False),
    (["gymnasium:*", "a:*"], playing(environment="gymnasium:ALE/Pong-v5.1"), True),
    (["gymnasium:*", "a:*"], playing(environment="gymnasium:evil:Pong-v5"), False),
    (["gymnasium:minigrid:*", "a:*"], playing(environment="gymnasium:minigrid:Empty-v0"), True),
    (["e:*", "openai:*"], playing(agent="openai:gpt-4.1"), True),
    (["openai:*", "a:*"], playing(environment="openai:lib.os.system"), False),
    (["http://lab:8000/*", "openai:*"], playing("http://lab:8000/gym.v1", "openai:m"), True),
    (["http://lab:8000/*", "openai:*"], playing("http://other:8000/gym", "openai:m"), False),
]
PROGRAMS = [
    (["command:/opt/bin/*"], {"command": ["/opt/bin/run", "x"]}, True),
    (["command:/opt/bin/*"], {"command": ["/opt/bin/../../bin/sh"]}, False),
    (["command:/opt/bin/*"], {"command": ["/opt/bin/{x}"], "args": {"x": "../../bin/sh"}}, False),
    (["command:*"], {"command": ["./run"]}, False),
    (["command:run"], {"command": ["run"]}, True),
    (["command:run"], {"command": ["run"], "cwd": "/evil"}, False),
    (["command:/opt/run"], {"command": ["/opt/run"], "cwd": "/any"}, True),
    (["command:[ab]"], {"command": ["a"]}, False),
]


@pytest.mark.parametrize(
    ("patterns", "run", "fits"),
    [*MODULES, *((patterns, with_task(**task), fits) for patterns, task, fits in PROGRAMS)],
)
def test_what_matches_no_pattern_is_refused(tmp_path, patterns, run, fits):
    allowed = AllowedEntries(tmp_path, lambda: patterns)
    AllowedEntries(tmp_path, lambda: None).require(run)
    if fits:
        allowed.require(run)
        return
    with pytest.raises(NotPermitted, match=r"restricts which code runs may name"):
        allowed.require(run)


def test_all_that_is_refused_is_told_with_its_place(tmp_path):
    with pytest.raises(NotPermitted) as caught:
        AllowedEntries(tmp_path, list).require(parse(WHOLE))
    told = str(caught.value)
    assert "env: PYTHONPATH can have other code run; env: LD_PRELOAD can have" in told
    assert (
        "conductors.environments.params.entry: gymnasium:FrozenLake-v1 and 11 more. Allowed: nothing" in told
    )


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_AUDIT", "RAY_RUNTIME_ENV_HOOK", "PATH", "HOME", "ENV"])
@pytest.mark.parametrize("key", ["env", "secrets", "task"])
def test_variables_that_run_code_are_refused_whatever_is_allowed(tmp_path, name, key):
    task = {"id": "t", "command": ["run"], **({"env": {name: "x"}} if key == "task" else {})}
    more = {} if key == "task" else {key: {name: "x"}}
    allowed = AllowedEntries(tmp_path, lambda: ["*"])
    try:
        run = parse({"name": "r", "phases": [{"name": "p", "tasks": [task]}], **more})
    except RunFileError:
        return  # no run may set it
    with pytest.raises(NotPermitted, match=f"{name} can have other code run"):
        allowed.require(run)


def test_a_change_is_looked_at_for_what_it_changes(tmp_path):
    allowed = AllowedEntries(tmp_path, lambda: ["new:*"])
    before = with_task(call="old:f")
    allowed.require(with_task(call="old:f", retries=3), before=before)
    allowed.require(with_task(call="new:f"), before=before)
    with pytest.raises(NotPermitted, match="other:f"):
        allowed.require(with_task(call="other:f"), before=before)


@pytest.fixture
async def daemon():
    async with open_api() as opened:
        yield opened


def restrict(daemon, *patterns):
    entries = CONFIG.entries.model_copy(update={"allow": patterns})
    daemon.config = CONFIG.model_copy(update={"entries": entries})


async def test_a_run_of_what_is_allowed_has_an_empty_folder(daemon, tmp_path):
    (tmp_path / "m.py").write_text("")
    restrict(daemon, "m:*")
    for run in (RUN, {**RUN, "code": "snapshot"}):
        uid = await daemon.executor.submit(run, folder=tmp_path)
        folder = daemon.journal.run(uid).folder
        assert folder in (str(daemon.runs / EMPTY), str(daemon.runs / uid / "code"))
        assert os.listdir(folder) == []  # noqa: PTH208


CELLS = [
    {"p.tasks.t.call": ["m:f", "m:g"]},
    {"include": [{"p.tasks.t.call": "m:g"}]},
    {"hooks": [{"on_end": ["touch", "x"]}, {}]},
    {"hooks.on_end": [["touch", "x"]]},
    {"env.PYTHONPATH": ["/a", "/b"]},
    {"env": [{"LD_PRELOAD": "/a"}, {}]},
]


async def test_nothing_else_is_submitted(daemon):
    restrict(daemon, "m:f")
    with pytest.raises(NotPermitted, match=r"restricts which code runs may name.*call: m:g\. Allowed: m:f"):
        await daemon.executor.submit(
            {**RUN, "phases": [{"name": "p", "tasks": [{"id": "t", "call": "m:g"}]}]}
        )
    assert not daemon.dispatched


@pytest.mark.parametrize("matrix", CELLS, ids=str)
async def test_nothing_else_is_in_a_cell_of_a_group(daemon, matrix):
    restrict(daemon, "m:f")
    with pytest.raises(NotPermitted, match=r"restricts which code runs may name"):
        await daemon.executor.submit_group({**RUN, "matrix": matrix})
    assert not daemon.dispatched
    restrict(daemon, "m:*", "command:touch")
    if not {"env", "env.PYTHONPATH"} & {*matrix}:
        assert await daemon.executor.submit_group({**RUN, "matrix": matrix})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("p.tasks.t.call", "m:g"),
        ("phases.p.tasks.t.call", "m:g"),
        ("hooks", {"on_end": ["touch", "x"]}),
        ("hooks.on_end", ["touch", "x"]),
        ("env", {"LD_PRELOAD": "/a"}),
        ("env.LD_PRELOAD", "/a"),
    ],
)
async def test_a_run_is_set_to_nothing_else(daemon, path, value):
    uid = await daemon.executor.submit(RUN)
    restrict(daemon, "m:f")
    before = daemon.journal.run(uid).spec
    with pytest.raises(NotPermitted, match=r"restricts which code runs may name"):
        await daemon.executor.set(uid, {path: value})
    assert daemon.journal.run(uid).spec == before
    await daemon.executor.set(uid, {"priority": 3})


async def test_an_earlier_run_is_not_resumed_with_code_that_is_no_longer_allowed(daemon, tmp_path):
    (tmp_path / "m.py").write_text("")
    uid = await daemon.executor.submit(RUN, folder=tmp_path)
    await daemon.executor.abort(uid)
    restrict(daemon, "m:*")
    with pytest.raises(NotPermitted, match="it was submitted when that was allowed"):
        await daemon.executor.resume(uid)
    restrict(daemon, "other:*")
    with pytest.raises(NotPermitted, match="m:f"):
        await daemon.executor.resume(uid)
    restrict(daemon, "m:*")
    allowed = await daemon.executor.submit(RUN, folder=tmp_path)
    await daemon.executor.abort(allowed)
    assert await daemon.executor.resume(allowed)

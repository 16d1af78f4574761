"""A daemon that restricts which code runs may name."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest

from governor.daemon.submission.allowed import EMPTY, AllowedEntries, named
from governor.errors import NotPermitted
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
    "env": ["env:PYTHONPATH", "env:LD_PRELOAD", "env:SEED"],
    "secrets": ["env:PATH", "env:OPENAI_API_KEY"],
    "env_file": [".env"],
    "conductors.environments.params.entry": ["gymnasium:FrozenLake-v1"],
    "conductors.environments.params.wrappers[0].entry": ["w:One"],
    "conductors.environments.params.wrappers[1].entry": ["w:Two"],
    "conductors.agents.labels.entry": ["a:Walker"],
    "conductors.services.args.command": ["command:serve"],
    "conductors.services.args.env": ["env:PYTHONHOME"],
    "phases[0].until[0].entry": ["u:Until"],
    "phases[1].tasks[0].call": ["t:f"],
    "phases[1].tasks[1].command": ["command:run.sh"],
    "phases[1].tasks[1].env": ["env:BASH_ENV"],
    "hooks.on_end": ["command:tell"],
    "hooks.on_limit": ["command:cry"],
}


def test_all_that_a_run_names_is_found_whatever_its_sections_are_called():
    found = {}
    for one in named(parse(WHOLE)):
        found.setdefault(one.place, []).append(one.kind + one.text)
    assert found == NAMED


def outcome(fits, said):
    return nullcontext() if fits else pytest.raises(NotPermitted, match=said)


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
    (["command:*", "env:*"], CALLS, False),
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
    (["*:*", "*:run", "run"], {"command": ["run"]}, False),
    (["*"], {"command": ["./run"], "cwd": "/any"}, True),
]


@pytest.mark.parametrize(
    ("patterns", "run", "fits"),
    [*MODULES, *((patterns, with_task(**task), fits) for patterns, task, fits in PROGRAMS)],
)
def test_what_matches_no_pattern_is_refused(tmp_path, patterns, run, fits):
    allowed = AllowedEntries(tmp_path, lambda: patterns)
    AllowedEntries(tmp_path, lambda: None).require(run)
    with outcome(fits, r"restricts which code runs may name"):
        allowed.require(run)


def test_all_that_is_refused_is_told_with_its_place(tmp_path):
    with pytest.raises(NotPermitted) as caught:
        AllowedEntries(tmp_path, list).require(parse(WHOLE))
    told = str(caught.value)
    assert "env: env:PYTHONPATH; env: env:LD_PRELOAD; env: env:SEED; secrets: env:PATH; " in told
    assert "secrets: env:OPENAI_API_KEY and 13 more. Allowed: nothing" in told


@pytest.mark.parametrize("where", ["env", "secrets", "task"])
@pytest.mark.parametrize(
    ("patterns", "fits"),
    [
        (["env:HF_HOME"], True),
        (["env:HF_*"], True),
        (["*"], True),
        (["env:HF_", "HF_HOME", "*:*"], False),
        ([], False),
    ],
)
def test_a_variable_must_match_a_pattern(tmp_path, where, patterns, fits):
    task = {"id": "t", "command": ["run"], **({"env": {"HF_HOME": "x"}} if where == "task" else {})}
    more = {} if where == "task" else {where: {"HF_HOME": "x"}}
    run = parse({"name": "r", "phases": [{"name": "p", "tasks": [task]}], **more})
    allowed = AllowedEntries(tmp_path, lambda: [*patterns, "command:run"])
    with outcome(fits, r"(env|secrets): env:HF_HOME"):
        allowed.require(run)


def test_a_file_of_variables_is_refused(tmp_path):
    run = parse({**RUN, "env_file": "x"})
    with pytest.raises(NotPermitted, match="env_file: x can set any variable"):
        AllowedEntries(tmp_path, lambda: ["m:f", "env:*"]).require(run)
    AllowedEntries(tmp_path, lambda: ["*"]).require(run)


@pytest.mark.parametrize(
    ("before", "change", "fits"),
    [
        ({"call": "old:f"}, {"retries": 3}, True),
        ({"call": "old:f"}, {"call": "new:f"}, True),
        ({"call": "old:f"}, {"call": "old:g"}, False),
        ({"call": "old:f"}, {"args": {"x": 1}}, False),
        ({"command": ["/bin/sh", "-c", "a"]}, {"timeout": 3}, True),
        ({"command": ["/bin/sh", "-c", "a"]}, {"command": ["/bin/sh", "-c", "b"]}, False),
        ({"command": ["a"], "cwd": "x"}, {"cwd": "y"}, False),
        ({"command": ["/bin/a"], "env": {"PATH": "x"}}, {"env": {"PATH": "y"}}, False),
        ({"command": ["/bin/a"]}, {"stdin": "y"}, False),
    ],
)
def test_a_change_of_code_or_of_its_arguments_is_looked_at_as_a_new_run(tmp_path, before, change, fits):
    allowed = AllowedEntries(tmp_path, lambda: ["new:*"])
    old, new = (
        with_task(**task).model_copy(update={"code": "snapshot"}) for task in (before, {**before, **change})
    )
    folder = tmp_path / "code"
    folder.mkdir()
    if not fits:
        with pytest.raises(NotPermitted):
            allowed.require_change(old, new, folder=str(folder))
        return
    allowed.require_change(old, new, folder=str(folder))
    (folder / "new.py").touch()
    if {*change} & {"call"}:
        with pytest.raises(NotPermitted, match=r"it would import from .*, where there are files"):
            allowed.require_change(old, new, folder=str(folder))
        (folder / "new.py").unlink()
        with pytest.raises(NotPermitted, match="it was submitted when that was allowed"):
            allowed.require_change(old, new.model_copy(update={"code": "folder"}), folder=str(folder))


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
        assert folder == str(daemon.runs / uid / "code")
        assert os.listdir(folder) == []  # noqa: PTH208
        (daemon.runs / EMPTY).chmod(0o700)
        (daemon.runs / EMPTY / "m.py").touch()  # by code of a run, whose user the daemon's is


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
    restrict(daemon, "m:f")
    uid = await daemon.executor.submit(RUN)
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

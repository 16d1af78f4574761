"""A daemon that restricts which code runs may name."""

from __future__ import annotations

import os

import pytest

from governor.daemon.submission.allowed import EMPTY, AllowedEntries, named
from governor.errors import NotPermitted
from tests.support.daemon.api_world import CONFIG, RUN, open_api

WHOLE = {
    "name": "whole",
    "x-common": {"entry": "left:out"},
    "seed": 1,
    "labels": {"entry": "left:out"},
    "env": {"PYTHONPATH": "/x", "LD_PRELOAD": "/y.so", "SEED": "1"},
    "env_file": ".env",
    "conductors": {
        "environments": {
            "lake": {
                "entry": "gymnasium:FrozenLake-v1",
                "params": {"entry": "left:out"},
                "wrappers": ["w:One", {"entry": "w:Two", "params": {"call": "left:out"}}],
            }
        },
        "agents": {"walker": {"entry": "a:Walker"}},
        "services": {"model": {"command": ["serve", "--call", "x"], "env": {"PYTHONHOME": "/"}}},
    },
    "phases": [
        {"name": "p", "simulate": {"environment": "lake"}, "until": [{"entry": "u:Until"}]},
        {
            "name": "q",
            "tasks": [
                {"id": "t", "call": "t:f", "args": {"entry": "left:out"}},
                {"id": "c", "command": ["run.sh"]},
            ],
        },
    ],
    "hooks": {"on_end": ["tell", "me"], "on_stall": "https://x", "on_limit": {"command": ["cry"]}},
    "matrix": {
        "agents.walker.entry": ["m:A", "m:B"],
        "agents.walker.params.entry": ["left:out"],
        "environments.lake": [{"entry": "m:Env"}],
        "include": [{"agents.walker.entry": "m:C"}],
        "tasks.t.command": [["one"], ["two", "x"]],
        "hooks.on_end": [["hook"]],
    },
}
NAMED = [
    *("PYTHONPATH can have other code run", "LD_PRELOAD can have other code run"),
    "a file of variables can have other code run",
    *("gymnasium:FrozenLake-v1", "w:One", "w:Two", "a:Walker", "command:serve"),
    *(
        "PYTHONHOME can have other code run",
        "u:Until",
        "t:f",
        "command:run.sh",
        "command:tell",
        "command:cry",
    ),
    *("m:A", "m:B", "m:Env", "m:C", "command:one", "command:two", "command:hook"),
]


def test_all_that_a_run_file_names_is_found():
    assert [text for _, text in named(WHOLE)] == NAMED


def test_a_place_is_told_with_what_stands_there():
    found = {text: path for path, text in named(WHOLE)}
    assert found["w:Two"] == "conductors.environments.lake.wrappers[1].entry"
    assert found["t:f"] == "phases[1].tasks[0].call"
    assert found["m:B"] == "matrix.agents.walker.entry"


@pytest.mark.parametrize(
    ("patterns", "refused"),
    [
        (["t:*", "command:run.sh"], []),
        (["*"], []),
        (["t:f"], ["command:run.sh"]),
        (["T:f", "command:*"], ["t:f"]),
        ([], ["t:f", "command:run.sh"]),
    ],
)
def test_what_matches_no_pattern_is_refused(tmp_path, patterns, refused):
    data = {"phases": [{"tasks": [{"call": "t:f"}, {"command": ["run.sh"]}]}]}
    allowed = AllowedEntries(tmp_path, lambda: patterns)
    if not refused:
        allowed.require(data)
        return
    with pytest.raises(NotPermitted) as caught:
        allowed.require(data)
    for each in refused:
        assert each in str(caught.value)


def test_variables_that_run_code_are_refused_whatever_is_allowed(tmp_path):
    allowed = AllowedEntries(tmp_path, lambda: ["*"])
    for data in ({"env": {"PYTHONPATH": "/x"}}, {"env_file": "x"}, {"tasks": [{"env": {"LD_AUDIT": "/x"}}]}):
        with pytest.raises(NotPermitted, match="can have other code run"):
            allowed.require(data)
    allowed.require({"env": {"SEED": "1"}, "env_file": None})
    AllowedEntries(tmp_path, lambda: None).require(WHOLE)


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


@pytest.mark.parametrize("how", ["submit", "group", "set"])
async def test_nothing_else_is_taken_in_whatever_way(daemon, how):
    restrict(daemon, "other:*")
    match how:
        case "submit":
            asked = daemon.executor.submit(RUN)
        case "group":
            asked = daemon.executor.submit_group({**RUN, "matrix": {"seed": [1, 2]}})
        case _:
            restrict(daemon, "m:f")
            uid = await daemon.executor.submit(RUN)
            asked = daemon.executor.set(uid, {"p.tasks.t.call": "m:g"})
    with pytest.raises(NotPermitted, match=r"restricts which code runs may name.*call: m:[fg]\. Allowed: "):
        await asked
    assert daemon.dispatched == (how == "set")


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

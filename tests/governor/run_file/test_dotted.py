"""Paths with dots: where they begin, what names an item of a list, and that nothing else is changed."""

from __future__ import annotations

import pytest

from governor.run_file.dotted import UnknownPath, resolve, with_value

DATA = {
    "name": "n",
    "conductors": {"agents": {"seed": {"params": {}}}, "environments": {}},
    "phases": [
        {"name": "fit", "tasks": [{"id": "fit"}, {"id": "fit.all"}, {"id": "2"}]},
        {"name": "fit.all", "until": [{"steps": 1}, {"steps": 2}]},
        {"name": "limits"},
    ],
}


def place(text):
    return resolve(
        DATA, text, roots=("name", "seed", "limits", "conductors", "phases"), kinds=("agents", "environments")
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("seed", ("seed",)),
        ("limits.wall_clock", ("limits", "wall_clock")),
        ("agents.seed.params.net.width", ("conductors", "agents", "seed", "params", "net", "width")),
        ("conductors.agents.seed.state", ("conductors", "agents", "seed", "state")),
        ("fit.mode", ("phases", 0, "mode")),
        ("fit.all.mode", ("phases", 1, "mode")),
        ("phases.limits.mode", ("phases", 2, "mode")),
        ("phases.1.mode", ("phases", 1, "mode")),
        ("fit.tasks.fit.all.args", ("phases", 0, "tasks", 1, "args")),
        ("fit.tasks.fit.args", ("phases", 0, "tasks", 0, "args")),
        ("fit.tasks.2.args", ("phases", 0, "tasks", 2, "args")),
        ("fit.all.until[1].steps", ("phases", 1, "until", 1, "steps")),
    ],
)
def test_a_path_leads_to_one_place(text, found):
    assert place(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be the keys"),
        ("seed.", "must be the keys"),
        ("sead", "did you mean 'seed'"),
        ("agents.sead.params", "unknown agent 'sead'; did you mean 'seed'"),
        ("environments.lake.params", "unknown environment 'lake'; the run has no environments"),
        ("phases.3.mode", "unknown phase '3'; there is 'fit', 'fit.all', 'limits'"),
        ("fit.all.until.2.steps", "unknown item '2'; there are 2 items, from 0"),
        ("name.x", "name is the text 'n' in the file, which has no key 'x'"),
    ],
)
def test_a_path_that_leads_nowhere_says_why(text, why):
    with pytest.raises(UnknownPath, match=why):
        place(text)


def test_a_value_is_put_into_a_copy():
    changed = with_value(DATA, ("phases", 0, "tasks", 1, "args", "lr"), 0.1)
    assert changed["phases"][0]["tasks"][1] == {"id": "fit.all", "args": {"lr": 0.1}}
    assert DATA["phases"][0]["tasks"][1] == {"id": "fit.all"}
    assert changed["phases"][1] is DATA["phases"][1]

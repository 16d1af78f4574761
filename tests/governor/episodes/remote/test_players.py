"""Several players through conductors: the same episodes as in process, and what happens when a conductor hangs or exits."""

import asyncio
import json

import pytest

from governor.episodes.records import state_file
from governor.errors import ConductorError
from tests.support.in_process_commands import parallel, turns
from tests.support.reasons import without_place
from tests.support.recorded_steps import rows

BY_LOT = {"agents": ("romeo", "juliet"), "agent": "parallel_world:ByLot", "red": 6, "blue": 9}


def told(records):
    return [(r.index, r.seed, r.outcome, r.value, r.values, r.steps, r.reason, r.metrics) for r in records]


def on_record(harness, phase, *players):
    return rows(harness.folder / "run", "episode", "step", *players, phase=phase)


def states(harness, names):
    paths = [harness.folder / f"run/agents/{name}.state" for name in names]
    found = [state_file.load(path) for path in paths]
    for path in paths:
        path.unlink(missing_ok=True)
    return found


@pytest.mark.parametrize(
    ("command", "players"),
    [
        (parallel(**BY_LOT), ("red", "blue")),
        (parallel(**BY_LOT, cut=["red"]), ("red", "blue")),
        (parallel(agent="ByLot", agents=["one"], players={}, red=6, blue=9), ("red", "blue")),
        (parallel(env="Overwrites"), ("red", "blue")),
        (parallel(env="Overwrites", agent="Zeroes"), ("red", "blue")),
        (parallel(env="Undead"), ("red", "blue")),
        (turns(agent="turns_world:ByLegalLot"), ("ann", "ben")),
        (turns(agent="turns_world:ByLegalLot", agents=("romeo", "juliet"), stones=20), ("ann", "ben")),
        (turns(agent="turns_world:ByLegalLot", late=2, stones=20), ("ann", "ben", "cat")),
        (turns(agent="turns_world:ByLegalLot", late=2, quits="ben", stones=20), ("ann", "ben", "cat")),
        (turns(env="Forgetful", agent="turns_world:ByLegalLot", stones=20), ("ann", "ben")),
        (turns(env="Illegal"), ("ann", "ben")),
        (turns(env="Illegal", agent="parallel_world:Always", agents=("a", "b"), stones=2), ("ann", "ben")),
    ],
)
@pytest.mark.parametrize("more", [{}, {"max_steps": 3}, {"mode": "eval"}, {"info": "all"}])
async def test_episodes_steps_and_what_agents_learn_are_those_of_in_process(harness, command, players, more):
    inner, _ = await harness.play(name="inner", episodes=4, **more, **command)
    first = states(harness, command["agents"])
    outer, _ = await harness.play(
        name="outer", episodes=4, incarnation=2, **more, **await harness.apart(command)
    )
    assert told(outer) == told(inner)
    assert "failed" not in {record.outcome for record in inner}
    assert on_record(harness, "outer", *players) == on_record(harness, "inner", *players)
    assert states(harness, command["agents"]) == first


@pytest.mark.parametrize("agents", [("one",), ("romeo", "juliet")])
@pytest.mark.parametrize("fault", ["", "step"])
@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_what_agents_are_told_is_that_of_in_process(harness, agents, fault, mode):
    """Whose step it is, its extras and info, begin and end of each episode, rollouts."""
    told = {}
    for number, way in enumerate(("inner", "outer"), 1):
        logs = {name: harness.folder / f"{way}.{name}" for name in agents}
        params = {
            name: {"log": str(log), "needs_info": name != "juliet", "rollout_steps": 2}
            for name, log in logs.items()
        }
        flag = {"fault": fault, "flag": str(harness.folder / f"flag.{way}")} if fault else {}
        command = turns(agent="streams_world:WitnessOfPlayers", agents=agents, params=params, **flag)
        if way == "outer":
            command = await harness.apart(command)
        records, _ = await harness.play(name="train", mode=mode, incarnation=number, **command)
        states(harness, agents)
        for name, log in logs.items():
            told[way, name] = [json.loads(line) for line in log.read_text().splitlines()]
    for name in agents:
        assert told["outer", name] == told["inner", name]
        assert len([one for one in told["inner", name] if one[0] == "begin"]) == len(records)
        assert [one[1] for one in told["inner", name] if one[0] == "values"] == [
            record.values for record in records
        ]
        ends = [one[-3:] for one in told["inner", name] if one[0] == "end"]
        assert ends == [[record.outcome, record.value, record.steps] for record in records]
    first = [one for one in told["inner", agents[0]] if one[0] == "learn" and one[3] == 2]
    whose = [(one[2], one[4]) for one in first]
    if mode == "eval":
        assert whose == []
    elif len(agents) == 1:
        assert sorted(whose, key=lambda one: one[1])[:3] == [("ann", 0), ("ben", 1), ("ann", 2)]
        assert next(one for one in told["inner", "one"] if one[0] == "rollout")[2] == ["ann", "ben"]
    else:
        assert whose[:2] == [("ann", 0), ("ann", 2)]


@pytest.mark.parametrize("way", ["in_process", "conductors"])
async def test_a_fault_of_begin_is_that_of_the_episode(harness, way):
    params = {"romeo": {"fault": "begin"}}
    command = turns(agent="streams_world:WitnessOfPlayers", agents=("romeo", "juliet"), params=params)
    if way == "conductors":
        command = await harness.apart(command)
    records, _ = await harness.play(episodes=1, **command)
    assert (records[0].outcome, without_place(records[0].reason)) == (
        "failed",
        "agent.begin: OSError: no pen",
    )


@pytest.mark.parametrize("who", ["environment.lake", "agent.romeo", "agent.juliet"])
async def test_an_episode_whose_environment_or_agent_exits_is_played_again(harness, who):
    """That of an environment costs no conductor."""
    dies = {"fault": "exit", "flag": str(harness.folder / "flag")}
    name = who.partition(".")[2]
    params = {"romeo": {}, "juliet": {}} | ({name: dies} if who != "environment.lake" else {})
    more = dies if who == "environment.lake" else {}
    command = turns(agent="turns_world:ByLegalLot", agents=("romeo", "juliet"), params=params, **more)
    entry = "turns_world:ByLegalLot"
    child = harness.spawn(who, entry=entry, params=dies) if name != "lake" else None
    apart = await harness.apart(command, without=who if child else "")
    controller = await harness.start("simulation")
    await controller.perform(harness.command(**apart))
    if child:
        assert await asyncio.to_thread(child.wait, 20) == 3
        (harness.folder / f"{who}.1").unlink()
        harness.spawn(who, entry=entry, params=dies, incarnation=2)
    outer, end = await harness.end()
    if child:
        (harness.folder / f"{who}.2").unlink()
    else:
        assert not harness.failures[who].done()
    assert [(record.index, record.outcome) for record in outer] == [(n, "terminated") for n in range(3)]
    assert (end.failures, end.metrics["episodes_played_again"]) == (0, 1)
    assert on_record(harness, "train")[0] == (0, 0)
    assert len(on_record(harness, "train")) == sum(record.steps for record in outer)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"fault": "sleep"}, "longer than 0.5 s, and environment 'lake' hangs"),
        ({"params": {"juliet": {"fault": "sleep"}}}, "longer than 0.5 s, and agent 'juliet' hangs"),
    ],
)
async def test_who_hangs_is_named(harness, more, reason):
    command = await harness.apart(parallel(**more))
    records, _ = await harness.play(episodes=1, episode_timeout=0.5, seconds=90, return_seconds=1, **command)
    assert (records[0].outcome, without_place(records[0].reason)) == ("timed_out", reason)


async def test_workers_share_agents_that_learn(harness):
    command = await harness.apart(parallel(), pool=3)
    records, _ = await harness.play(episodes=12, workers=3, **command)
    assert sorted(record.index for record in records) == [*range(12)]
    assert states(harness, ("romeo", "juliet")) == [{"learned": 36}, {"learned": 60}]


async def test_a_learner_beside_the_actor_learns_all_and_its_fault_is_named(harness):
    command = await harness.apart(parallel())
    records, _ = await harness.play(episodes=5, max_staleness=2, **command)
    assert {record.outcome for record in records} == {"terminated"}
    assert states(harness, ("romeo", "juliet")) == [{"learned": 15}, {"learned": 25}]


async def test_the_fault_of_a_learner_beside_the_actor_names_its_player(harness):
    command = await harness.apart(parallel(params={"juliet": {"fault": "learn"}}))
    records, _ = await harness.play(episodes=1, max_staleness=2, **command)
    assert (records[0].outcome, without_place(records[0].reason)) == (
        "failed",
        "agent.learn of blue: ZeroDivisionError",
    )


async def test_metrics_and_infos_are_those_of_in_process(harness):
    command = turns(agent="turns_world:ByLegalLot", agents=("romeo", "juliet"))
    inner, _ = await harness.play(name="inner", episodes=2, info={"left": "min"}, **command)
    states(harness, command["agents"])
    apart = await harness.apart(command)
    outer, _ = await harness.play(name="outer", episodes=2, info={"left": "min"}, incarnation=2, **apart)
    assert [record.metrics for record in outer] == [record.metrics for record in inner]
    assert {"ann.left", "ben.left", "romeo.learned", "juliet.learned"} <= {*outer[0].metrics}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"env": "walk_world:Walk"},
            "environment 'lake': it has one player (no possible_agents): say one agent, in a list",
        ),
        ({"players": {"red": "romeo"}}, "environment 'lake': no agent plays 'blue': say one in 'agents'"),
        (
            {"env": "Uneven", "agents": ["one"], "players": {}},
            "environment 'lake': players 'red' and 'blue' have different spaces: one agent, 'one', cannot play both",
        ),
        (
            {"env": "LikeAColumn", "agents": ["one"], "players": {}},
            "environment 'lake': an agent cannot be called 'phase': a column of the steps has that name",
        ),
    ],
)
async def test_what_does_not_fit_ends_the_part_and_says_what_does(harness, more, reason):
    records, end = await harness.play(**await harness.apart(parallel(**more)))
    assert (records, end.end, end.first_failure) == ([], "stopped", reason)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"vector": 2},
            "environment 'parallel_world:Pair': it has several players ('red', 'blue'): leave out 'vector'",
        ),
        ({"env": "Nobody"}, "environment 'parallel_world:Nobody': its possible_agents are empty"),
    ],
)
async def test_an_environment_that_cannot_be_played_does_not_start(harness, more, reason):
    with pytest.raises(ConductorError) as raised:
        await harness.apart(parallel(**more))
    assert raised.value.reason == reason

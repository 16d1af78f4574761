"""Environments of several players: the values of each, players that leave, faults, and the assignment of agents."""

import asyncio
import json

import msgspec
import pytest

from governor.episodes.local import in_process
from governor.episodes.records import state_file
from governor.messages import (
    EpisodeEnded,
    EpisodeRecord,
    PartEndedReport,
    StopPartCommand,
    Until,
)
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import BOTH, PLAYERS, episodes, outcomes, parallel
from tests.support.reasons import without_place
from tests.support.recorded_steps import rows


def learned(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def state(harness, name):
    return state_file.load(harness.folder / f"run/agents/{name}.state")


async def test_each_player_has_its_values_and_leaves_when_it_is_done(harness):
    records, end = await harness.play(episodes=2, **parallel())
    assert [(r.outcome, r.steps, r.value, r.values) for r in records] == [
        ("terminated", 5, 13.0, {"red": 3.0, "blue": 10.0})
    ] * 2
    assert {name: end.metrics[name] for name in end.metrics if name.startswith("return_mean")} == {
        "return_mean": 13.0,
        "return_mean.red": 3.0,
        "return_mean.blue": 10.0,
    }
    assert harness.lines()[0]["values"] == {"red": 3.0, "blue": 10.0}
    red, blue = zip(*rows(harness.folder / "run", "red", "blue")[:5], strict=True)
    assert [None if one is None else (one["reward"], one["terminated"]) for one in red] == [
        (1.0, False), (1.0, False), (1.0, True), None, None,
    ]  # fmt: skip
    assert [(one["reward"], one["terminated"]) for one in blue] == [(2.0, False)] * 4 + [(2.0, True)]
    assert (state(harness, "romeo"), state(harness, "juliet")) == ({"learned": 6}, {"learned": 10})


async def test_each_agent_learns_what_its_player_saw(harness):
    log = harness.folder / "blue"
    records, _ = await harness.play(episodes=1, **parallel(params={"juliet": {"log": str(log)}}))
    told = learned(log)
    first = told[0]["observation"]
    assert [(one["observation"], one["next_observation"]) for one in told] == [
        (first + step, first + step + 1) for step in range(5)
    ]
    assert [one["terminated"] for one in told] == [False] * 4 + [True]
    assert {one["reward"] for one in told} == {2.0}
    assert records[0].seed


@pytest.mark.parametrize(
    ("cut", "outcome"),
    [([], "terminated"), (["red"], "truncated"), (["blue"], "truncated"), (["red", "blue"], "truncated")],
)
async def test_terminated_is_an_episode_in_which_all_are(harness, cut, outcome):
    records, _ = await harness.play(episodes=1, **parallel(cut=cut))
    assert (records[0].outcome, records[0].steps) == (outcome, 5)


async def test_max_steps_truncates_the_players_that_are_left(harness):
    log = harness.folder / "told"
    records, _ = await harness.play(
        episodes=1,
        max_steps=4,
        **parallel(agents=["one"], agent="Told", players={}, params={"one": {"log": str(log)}}),
    )
    assert (records[0].outcome, records[0].steps) == ("truncated", 4)
    ends = [(one["player"], one["terminated"], one["truncated"]) for one in learned(log)]
    assert [end for end in ends if end[1] or end[2]] == [("red", True, False), ("blue", False, True)]


@pytest.mark.parametrize(
    ("agents", "players", "learned"),
    [
        (("one",), {}, {"one": 8}),
        (("one",), {"red": "one", "blue": "one"}, {"one": 8}),
        (("first", "second"), {}, {"first": 3, "second": 5}),
        (("first", "second"), {"red": "second", "blue": "first"}, {"first": 5, "second": 3}),
    ],
)
async def test_the_assignment_of_agents_to_players(harness, agents, players, learned):
    records, _ = await harness.play(episodes=1, **parallel(agents=agents, players=players))
    assert records[0].values == {"red": 3.0, "blue": 10.0}
    assert {name: state(harness, name)["learned"] for name in agents} == learned


async def test_an_agent_with_the_parameter_gets_its_player(harness):
    log = harness.folder / "told"
    command = parallel(agents=["one"], agent="Told", players={}, params={"one": {"log": str(log)}})
    records, _ = await harness.play(episodes=1, **command)
    assert records[0].values == {"red": 3.0, "blue": 0.0}
    assert [one["player"] for one in learned(log)] == ["red", "blue"] * 3 + ["blue"] * 2


async def test_a_player_that_has_left_does_not_come_back(harness):
    records, _ = await harness.play(episodes=1, **parallel(env="Undead"))
    assert (records[0].outcome, records[0].values) == ("terminated", {"red": 3.0, "blue": 10.0})


async def test_arrays_share_no_memory(harness):
    log = harness.folder / "red"
    await harness.play(episodes=1, **parallel(env="Overwrites", params={"romeo": {"log": str(log)}}))
    told = learned(log)
    assert [one["observation"][0] for one in told] == [0, 1, 2]
    assert [one["next_observation"][0] for one in told] == [1, 2, 3]
    assert [one["action"] for one in told] == [[1, 1]] * 3


async def test_a_function_and_pettingzoos_own_wrappers_play_the_same_episodes(harness):
    plain, _ = await harness.play(name="plain", **parallel())
    wrapped, _ = await harness.play(name="wrapped", phase=1, **parallel(env="there_and_back"))
    assert [(r.outcome, r.steps, r.values) for r in wrapped] == [
        (r.outcome, r.steps, r.values) for r in plain
    ]


async def test_the_same_seed_gives_the_same_episodes_and_agents_draw_their_own_numbers(harness):
    told = []
    for turn in range(2):
        for name in BOTH:
            (harness.folder / f"run/agents/{name}.state").unlink(missing_ok=True)
        command = parallel(agent="ByLot", red=40, blue=40)
        records, _ = await harness.play(episodes=5, name=f"turn-{turn}", **command)
        told.append([(r.index, r.seed, r.values) for r in records])
    assert told[0] == told[1]
    assert any(values["blue"] != 2 * values["red"] for _, _, values in told[0])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"fault": "reset"}, "environment.reset: RuntimeError: no floor"),
        ({"fault": "reset_blue"}, "environment.reset: ValueError: player 'blue': observation: none is there"),
        ({"fault": "nobody"}, "environment.reset: ValueError: it has no player"),
        (
            {"fault": "stranger"},
            "environment.reset: ValueError: player 'green' is in agents, but not in possible_agents",
        ),
        ({"env": "NanBox"}, "environment.reset: ValueError: player 'blue': observation: it holds NaN"),
        ({"fault": "step"}, "environment.step: ValueError: leg broken"),
        ({"fault": "nan"}, "environment.step: ValueError: player 'blue': the reward is nan"),
        ({"fault": "no_reward"}, "environment.step: ValueError: player 'blue': reward: none is there"),
        ({"fault": "no_end"}, "environment.step: ValueError: player 'red': truncation: none is there"),
        ({"fault": "list"}, "environment.step: ValueError: player 'red': observation: none is there"),
        (
            {"fault": "four"},
            "environment.step: ValueError: it did not return (observations, rewards, terminations, truncations, infos)",
        ),
        (
            {"fault": "gone"},
            "environment.step: ValueError: player 'blue' is not in agents any more, but neither terminated nor truncated",
        ),
        ({"params": {"juliet": {"fault": "act"}}}, "agent.act of blue: KeyError: 'observation'"),
        ({"params": {"juliet": {"fault": "learn"}}}, "agent.learn of blue: ZeroDivisionError"),
        (
            {"params": {"romeo": {"fault": "bad_action"}}},
            "agent.act of red: ValueError: 7 is not in Discrete(2)",
        ),
    ],
)
async def test_a_fault_is_a_failed_episode_and_names_the_player(harness, more, reason):
    records, end = await harness.play(episodes=1, **parallel(**more))
    told = records[0].reason
    assert (records[0].outcome, told.partition(" (")[0] if "parallel_world.py" in told else told) == (
        "failed",
        reason,
    )
    assert end.first_failure == f"episode 0: {told}"


async def test_the_next_episode_is_played_after_a_failed_one(harness):
    records, _ = await harness.play(episodes=2, **parallel(fault="nan", flag=str(harness.folder / "flag")))
    assert outcomes(records) == ["failed", "terminated"]
    assert (records[0].steps, records[0].values) == (1, {"red": 1.0, "blue": 2.0})


async def test_steps_that_cannot_be_written_fail_the_episode(harness):
    command = parallel(env="Overwrites", red=10_000, blue=10_000)
    with full_beyond(60_000):
        records, _ = await harness.play(episodes=1, mode="eval", **command)
    assert records[0].outcome == "failed"
    assert records[0].reason.startswith("cannot record its steps: OSError: [Errno 27]")
    assert records[0].steps < 10_000


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"env": "walk_world:Walk"},
            "environment 'walk_world:Walk': it has one player (no possible_agents): say one agent, in a list",
        ),
        (
            {"players": {"red": "romeo"}},
            "environment 'parallel_world:Pair': no agent plays 'blue': say one in 'agents'",
        ),
        (
            {"players": {**PLAYERS, "green": "romeo"}},
            "environment 'parallel_world:Pair': it has no player 'green'; there are 'red', 'blue'",
        ),
        (
            {"agents": ["a", "b", "c"], "players": {}},
            "environment 'parallel_world:Pair': 3 agents ('a', 'b', 'c') for 2 players ('red', 'blue')",
        ),
        (
            {"env": "Uneven", "agents": ["one"], "players": {}},
            "environment 'parallel_world:Uneven': players 'red' and 'blue' have different spaces: one agent, 'one', cannot play both",
        ),
        (
            {"env": "Spaceless"},
            "environment 'parallel_world:Spaceless': action_space('blue'): KeyError: 'blue'",
        ),
        (
            {"env": "Numbered"},
            "environment 'parallel_world:Numbered': player 0 is of type int: names must be texts",
        ),
        ({"env": "Nobody"}, "environment 'parallel_world:Nobody': its possible_agents are empty"),
        (
            {"env": "LikeAColumn", "agents": ["one"], "players": {}},
            "environment 'parallel_world:LikeAColumn': an agent cannot be called 'phase': a column of the steps has that name",
        ),
        (
            {"vector": 2, "agents": ["one"], "players": {}},
            "environment 'parallel_world:Pair': it has several players ('red', 'blue'): leave out 'vector'",
        ),
    ],
)
async def test_what_does_not_fit_ends_the_part_and_says_what_does(harness, more, reason):
    records, end = await harness.play(**parallel(**more))
    assert records == []
    told = end.first_failure.partition(" (parallel_world.py")[0]
    assert (end.end, end.failures, told) == ("stopped", 1, reason)


async def test_different_spaces_are_for_different_agents(harness):
    records, _ = await harness.play(episodes=1, **parallel(env="Uneven"))
    assert outcomes(records) == ["terminated"]


async def test_a_slow_environment_times_out_and_continues(harness, monkeypatch):
    monkeypatch.setattr(in_process, "GRACE_SECONDS", 10)
    command = parallel(fault="slow", flag=str(harness.folder / "flag"))
    records, _ = await harness.play(episodes=2, episode_timeout=0.2, **command)
    assert (records[0].outcome, records[0].reason) == ("timed_out", "longer than 0.2 s")
    assert records[0].steps < 2
    assert records[1].index == 1


async def test_a_stop_cancels_at_the_next_step(harness):
    log = harness.folder / "red"
    controller = await harness.start("simulation")
    command = parallel(red=10**9, blue=4, params={"romeo": {"log": str(log)}})
    await controller.perform(harness.command(episodes=2, **command))
    async with asyncio.timeout(20):
        while not log.exists():
            await asyncio.to_thread(lambda: None)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    records, end = await harness.end()
    assert (end.end, end.failures) == ("stopped", 0)
    assert outcomes(records) == ["cancelled"]
    assert records[0].values["red"] == records[0].steps


@pytest.mark.parametrize(
    ("more", "whose"),
    [
        ({"fault": "sleep", "at": 1}, "environment 'lake'"),
        ({"params": {"romeo": {"fault": "sleep"}}}, "agent 'romeo'"),
    ],
)
async def test_a_hang_names_whose_code_it_is_and_takes_the_process_with_it(harness, more, whose):
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=3, episode_timeout=1.0, **parallel(**more)))
    assert without_place(await asyncio.wait_for(controller.failed, 20)) == f"{whose} hangs in episode 0"
    (record,) = episodes(harness.links["simulation"])
    assert (record.outcome, record.values) == ("timed_out", {"red": 0.0, "blue": 0.0})
    assert without_place(record.reason) == f"longer than 1 s, and {whose} hangs"


async def test_what_the_others_have_learned_is_kept_when_one_hangs(harness, monkeypatch):
    controller = await harness.start("simulation")
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**9)
    await controller.perform(harness.command(phase=0, episodes=4, name="a", **parallel()))
    await harness.end()
    controller._agents["juliet"]._learned.agent.fault = "sleep"
    controller._agents["romeo"]._learned._unsaved = True
    controller._agents["romeo"]._learned.agent.learned = 99
    await controller.perform(harness.command(phase=1, name="b", episode_timeout=1.0, **parallel()))
    assert without_place(await asyncio.wait_for(controller.failed, 20)) == "agent 'juliet' hangs in episode 0"
    assert state(harness, "romeo") == {"learned": 99}


async def test_reset_keeps_the_agents(harness, monkeypatch):
    import parallel_world

    built = []
    monkeypatch.setattr(parallel_world.Always, "built", built)
    until = (Until(entry="conditions_world:Every", params={"episodes": 5, "answer": "RESET"}),)
    records, _ = await harness.play(episodes=20, until=until, **parallel())
    assert outcomes(records) == ["terminated"] * 20
    assert (state(harness, "romeo"), state(harness, "juliet")) == ({"learned": 60}, {"learned": 100})
    assert len(built) == 2


async def test_several_workers_share_the_agents_and_the_next_process_continues(harness):
    records, _ = await harness.play(episodes=20, workers=3, **parallel())
    assert sorted(record.index for record in records) == list(range(20))
    assert state(harness, "juliet") == {"learned": 100}
    again, end = await harness.play(episodes=22, done=tuple(records), incarnation=2, **parallel())
    assert [record.index for record in again] == [20, 21]
    assert end.metrics["return_mean.blue"] == 10.0
    assert state(harness, "juliet") == {"learned": 110}


async def test_eval_neither_learns_nor_saves(harness):
    log = harness.folder / "red"
    records, _ = await harness.play(mode="eval", **parallel(params={"romeo": {"log": str(log)}}))
    assert outcomes(records) == ["terminated"] * 3
    assert not log.exists()
    assert state(harness, "romeo") is None


async def test_players_whose_agent_is_not_named_are_refused(harness):
    controller = await harness.start("simulation")
    refused = await controller.perform(harness.command(**parallel(players={"red": "nobody"})))
    assert "are not among" in refused.message


def test_records_of_an_older_journal_have_no_values():
    record = EpisodeRecord(
        index=0, worker=0, seed=1, outcome="terminated", value=1.0, steps=2, seconds=0.5, values={"red": 1.0}
    )
    old = msgspec.structs.asdict(record)
    del old["values"]
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=EpisodeRecord)
    assert read == msgspec.structs.replace(record, values={})
    ended = EpisodeEnded(phase=0, episode=record)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ended), type=EpisodeEnded | PartEndedReport) == ended

import asyncio

import pytest
from full_disk import full_beyond

from governor.episodes import trajectories
from governor.episodes.records.recording import Columns, StepRecorder
from governor.episodes.spaces import Discrete
from governor.errors import ConductorError
from governor.messages import Done, EpisodeEnded, EpisodeRecord, PartEnded, Refused, StopPart, Until

FULL = "cannot record its steps: OSError: [Errno 27] File too large"
WALK = Columns.of(Discrete(n=1000, start=0), Discrete(n=2, start=0))


def outcomes(records):
    return [record.outcome for record in records]


async def test_frozen_lake_from_start_to_end(house):
    await house.pair(entry="gymnasium:FrozenLake-v1", is_slippery=False)
    records, end = await house.play(episodes=4, max_steps=10)
    assert end.end == "max_episodes"
    assert end.failures == 0
    assert [record.index for record in records] == [0, 1, 2, 3]
    assert end.metrics["episodes_ended"] == 4
    assert end.metrics["steps_total"] == sum(record.steps for record in records)
    assert [line["index"] for line in house.lines()] == [0, 1, 2, 3]
    assert house.lines()[0]["mode"] == "train"


async def test_each_step_is_learned_once_and_the_state_is_kept(house):
    log = house.folder / "learned"
    await house.pair(agent_params={"log": str(log)})
    records, end = await house.play(episodes=2)
    assert [(record.outcome, record.value, record.steps) for record in records] == [
        ("terminated", 5.0, 5)
    ] * 2
    assert house.state()["learned"] == 10
    lines = log.read_text().splitlines()
    assert len(lines) == 10
    assert [("terminated=True" in line) for line in lines] == [False] * 4 + [True] + [False] * 4 + [True]
    assert end.metrics["return_mean"] == 5.0


async def test_max_steps_truncates_also_for_the_agent(house):
    log = house.folder / "learned"
    await house.pair(agent_params={"log": str(log)})
    records, _ = await house.play(episodes=1, max_steps=3)
    assert (records[0].outcome, records[0].steps) == ("truncated", 3)
    assert log.read_text().splitlines()[-1].endswith("terminated=False, truncated=True)")


async def test_eval_does_not_learn(house):
    await house.pair()
    records, _ = await house.play(mode="eval")
    assert outcomes(records) == ["terminated"] * 3
    assert house.state() is None


async def test_vectors_cross_with_dtype_and_shape(house):
    await house.pair(entry="walk_world:Vector")
    records, end = await house.play(episodes=1, max_steps=20)
    assert (records[0].outcome, records[0].steps, records[0].reason) == ("truncated", 20, "")
    assert end.failures == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reset", "environment.reset: RuntimeError: no floor"),
        ("step", "environment.step: ValueError: leg broken"),
        ("exit", "environment.step: SystemExit: 3"),
        ("nan", "environment.step: ValueError: the reward is nan"),
        ("shape", "environment.step: ValueError: observation: array([0., 0., 0.]) is no integer"),
        (
            "four",
            "environment.step: ValueError: it did not return (observation, reward, terminated, truncated, info)",
        ),
    ],
)
async def test_a_bad_environment_is_a_failed_episode_with_its_reason(house, fault, reason):
    await house.pair(fault=fault, flag="" if fault == "reset" else str(house.folder / "flag"))
    records, end = await house.play(episodes=2)
    assert (records[0].outcome, records[0].reason) == ("failed", reason)
    assert end.first_failure == f"episode 0: {reason}"
    assert records[1].outcome == ("failed" if fault == "reset" else "terminated")
    assert end.end == "max_episodes"


async def test_nan_in_an_observation_fails_the_episode(house):
    await house.pair(entry="walk_world:NanBox")
    records, _ = await house.play(episodes=1)
    assert records[0].reason == "environment.reset: ValueError: observation: it holds NaN"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("act", "agent.act: KeyError: 'observation'"),
        ("learn", "agent.learn: ZeroDivisionError"),
        ("bad_action", "agent.act: ValueError: 7 is not in Discrete(2)"),
    ],
)
async def test_a_bad_agent_is_a_failed_episode_with_its_reason(house, fault, reason):
    await house.pair(agent_params={"fault": fault, "flag": str(house.folder / "flag")})
    records, end = await house.play(episodes=2)
    assert (records[0].outcome, records[0].reason) == ("failed", reason)
    assert records[1].outcome == ("failed" if fault == "learn" else "terminated")
    assert end.failures == (2 if fault == "learn" else 1)


async def test_an_agent_that_cannot_be_built_ends_the_part(house):
    await house.pair(agent_params={"fault": "init"})
    records, end = await house.play()
    assert records == []
    assert (end.end, end.failures) == ("stopped", 1)
    assert end.first_failure == "agent 'walk_world:Agent' does not start: ValueError: no brain"


@pytest.mark.parametrize("fault", ["sleep", "spin"])
async def test_a_hung_environment_times_out_and_is_replaced(house, fault):
    await house.pair(fault=fault, flag=str(house.folder / "flag"))
    records, end = await house.play(episodes=3, episode_timeout=0.5)
    assert outcomes(records) == ["timed_out", "terminated", "terminated"]
    assert records[0].reason == "longer than 0.5 s, and environment 'lake' hangs"
    assert 0.5 <= records[0].seconds < 2.0
    assert end.failures == 1
    hanging = house.conductors["environment.lake"].pool.hanging
    assert len(hanging) == (1 if fault == "sleep" else 0)  # pure Python is interrupted, a sleep is not


async def test_a_slow_environment_is_not_taken_for_a_hung_one(house):
    await house.pair(fault="slow", length=5)
    pool = house.conductors["environment.lake"].pool
    before = pool._free[0]
    records, _ = await house.play(episodes=2, episode_timeout=0.1)
    assert outcomes(records) == ["timed_out", "timed_out"]
    assert pool._free == [before]


async def test_when_too_many_environments_hang_the_conductor_gives_up(house):
    await house.pair(fault="sleep")
    controller = await house.start("simulation")
    await controller.perform(house.command(episodes=9, episode_timeout=0.1))
    assert "4 environments hang" in await asyncio.wait_for(house.failures["environment.lake"], 20)


async def test_a_hung_agent_makes_its_conductor_give_up(house):
    await house.pair(agent_params={"fault": "sleep"})
    controller = await house.start("simulation")
    await controller.perform(house.command(episodes=2, episode_timeout=0.3))
    assert "hangs" in await asyncio.wait_for(house.failures["agent.walker"], 20)
    first = await house.links["simulation"].next(EpisodeEnded)
    assert (first.episode.outcome, first.episode.reason) == (
        "timed_out",
        "longer than 0.3 s, and agent 'walker' hangs",
    )


async def test_until_stops_the_phase_as_soon_as_it_holds(house):
    await house.pair()
    records, end = await house.play(
        episodes=50, until=(Until(metric="return", at_least=5.0, average_over=4),)
    )
    assert len(records) in (4, 5)
    assert end.end == "until"
    assert outcomes(records)[:4] == ["terminated"] * 4


async def test_until_counts_what_ended_before_this_incarnation(house):
    await house.pair()
    done = tuple(
        EpisodeRecord(index=i, worker=0, seed=0, outcome="terminated", value=5.0, steps=5, seconds=0.1)
        for i in range(2)
    )
    records, end = await house.play(
        episodes=50, done=done, until=(Until(metric="return", at_least=5.0, average_over=3),)
    )
    assert records[0].index == 2
    assert end.end == "until"
    assert end.metrics["return_mean"] == 5.0


async def test_an_unknown_metric_is_refused(house):
    controller = await house.start("simulation")
    answer = await controller.perform(house.command(until=(Until(metric="loss", at_least=1),)))
    assert isinstance(answer, Refused)
    assert answer.message == "unknown metric 'loss'; known: return, seconds, steps"


async def test_several_agents_for_one_environment_are_refused(house):
    controller = await house.start("simulation")
    assert isinstance(await controller.perform(house.command(agents=("a", "b"))), Refused)


@pytest.mark.parametrize("flow", ["STOP_SIMULATION", "STOP_PHASE"])
async def test_the_governor_stops_the_phase_at_the_end_of_an_episode(house, flow):
    await house.pair()
    records, end = await house.play(episodes=500, flow=flow)
    assert end.end == "stopped"
    assert len(records) < 500


async def test_a_shutdown_leaves_what_is_being_played_to_whoever_takes_the_run_up(house):
    await house.pair()
    controller = await house.start("simulation", flow="SHUTDOWN")
    await controller.perform(house.command(episodes=500, workers=2))
    link = house.links["simulation"]
    await link.next(EpisodeEnded)
    await asyncio.wait_for(controller._task, 10)
    assert {event.episode.outcome for event in link.events} == {"terminated"}
    assert not [event for event in link.events if isinstance(event, PartEnded)]


@pytest.mark.parametrize("flow", ["RESET", "RESTART"])
async def test_reset_and_restart_build_anew_and_go_on(house, flow):
    await house.pair()
    agent = house.conductors["agent.walker"].host
    records, end = await house.play(episodes=4, flow=flow)
    assert outcomes(records) == ["terminated"] * 4
    assert end.end == "max_episodes"
    assert agent._mind.agent.learned == 20  # a new one has loaded what the old one learned


async def test_pause_holds_the_next_episode_until_the_phase_is_started_again(house):
    await house.pair()
    controller = await house.start("simulation", flow="PAUSE")
    command = house.command(episodes=500)
    await controller.perform(command)
    link = house.links["simulation"]
    await link.next(EpisodeEnded)
    with pytest.raises(TimeoutError):
        await house.end(seconds=0.3)
    link.flow = "CONTINUE"
    await controller.perform(command)
    records, end = await house.end()
    assert len(records) == 500
    assert end.end == "max_episodes"


async def test_a_phase_is_played_once_however_often_its_command_comes(house):
    await house.pair()
    controller = await house.start("simulation")
    assert await controller.perform(house.command()) == Done()
    await house.end()
    assert await controller.perform(house.command()) == Done()
    after = house.command(phase=1, name="after")
    assert await asyncio.gather(controller.perform(after), controller.perform(after)) == [Done(), Done()]
    assert await controller.perform(house.command()) == Done()
    link = house.links["simulation"]
    async with asyncio.timeout(20):
        while not isinstance(link.events[-1], PartEnded) or link.events[-1].phase != 1:
            await link.next(PartEnded, after=len(link.events))
    assert [event.phase for event in link.events if isinstance(event, PartEnded)] == [0, 1]
    assert sum(isinstance(event, EpisodeEnded) for event in link.events) == 6


async def test_stop_cancels_what_runs_even_in_a_hung_environment(house):
    await house.pair(fault="sleep")
    leased = house.watch_leases()
    controller = await house.start("simulation")
    await controller.perform(house.command())
    await leased.wait()
    await controller.perform(StopPart(phase=0, reason="abort"))
    records, end = await house.end(seconds=5)
    assert end.end == "stopped"
    assert end.failures == 0
    assert outcomes(records) in ([], ["cancelled"])


async def test_the_same_seed_gives_the_same_episodes(house):
    await house.pair(agent="walk_world:Random", entry="gymnasium:FrozenLake-v1")
    first, _ = await house.play(episodes=5, mode="eval")
    await house.conductors["agent.walker"].close()
    await house.start("agent.walker", entry="walk_world:Random", params={}, incarnation=2)
    again, _ = await house.play(episodes=5, mode="eval", incarnation=2)
    assert [(r.seed, r.steps, r.value) for r in first] == [(r.seed, r.steps, r.value) for r in again]
    assert len({r.seed for r in first}) == 5


async def test_several_workers_share_the_episodes(house):
    await house.pair(pool=3)
    records, _ = await house.play(episodes=30, workers=3)
    assert sorted(record.index for record in records) == list(range(30))
    assert house.state()["learned"] == 150


async def test_more_workers_than_environments_play_with_what_there_is(house):
    await house.pair(pool=1)
    records, end = await house.play(episodes=10, workers=3)
    assert len(records) == 10
    assert end.failures == 0


async def test_a_later_controller_takes_over_the_leases_of_the_one_before(house):
    await house.pair(fault="sleep")
    leased = house.watch_leases()
    controller = await house.start("simulation")
    await controller.perform(house.command(episodes=1, episode_timeout=1.0))
    await leased.wait()
    records, _ = await house.play(episodes=1, episode_timeout=3.0, incarnation=2)
    assert outcomes(records) == ["timed_out"]
    assert not house.conductors["environment.lake"].pool._leases


async def test_lines_that_were_never_reported_are_played_again(house):
    await house.pair()
    records, _ = await house.play(episodes=3)
    path = house.folder / "run/episodes/train.jsonl"
    with path.open("ab") as file:
        file.write(b'{"index": 3, "tor')
    again, end = await house.play(episodes=4, done=tuple(records[:2]), incarnation=2)
    assert [record.index for record in again] == [2, 3]
    assert [line["index"] for line in house.lines()] == [0, 1, 2, 3]
    assert end.metrics["episodes_ended"] == 4


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("walk_world:Raises", "environment 'walk_world:Raises' does not start: OSError: no display"),
        ("walk_world:Nothing", "entry 'walk_world:Nothing' does not load: AttributeError"),
        ("gymnasium:NoSuch-v0", "environment 'gymnasium:NoSuch-v0' does not start: NameNotFound"),
        ("walk_world:Odd", "environment 'walk_world:Odd': observation_space: Dict is not supported"),
    ],
)
async def test_a_pool_that_cannot_start_says_why(house, entry, reason):
    with pytest.raises(ConductorError) as raised:
        await house.start("environment.lake", entry=entry, params={}, pool=2)
    assert raised.value.reason.startswith(reason)
    assert "\n" not in raised.value.reason


async def test_a_killed_environment_conductor_is_waited_for_and_the_episode_played_again(house):
    flag = str(house.folder / "flag")
    settings = {"entry": "walk_world:Walk", "params": {"fault": "die", "flag": flag}, "pool": 1}
    child = house.spawn("environment.lake", **settings)
    await house.start("agent.walker", entry="walk_world:Agent", params={})
    controller = await house.start("simulation")
    await controller.perform(house.command(episodes=3))
    assert await asyncio.to_thread(child.wait, 20) == 9
    (house.folder / "environment.lake.1.0").unlink()
    house.spawn("environment.lake", incarnation=2, **settings)
    records, end = await house.end()
    assert [(r.index, r.outcome, r.steps) for r in records] == [(i, "terminated", 5) for i in range(3)]
    assert end.failures == 0
    assert end.metrics["episodes_played_again"] == 1
    (house.folder / "environment.lake.2.0").unlink()


async def test_a_restarted_agent_conductor_goes_on_learned(house):
    await house.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
    settings = {"entry": "walk_world:Agent", "params": {}}
    child = house.spawn("agent.walker", **settings)
    await house.play(episodes=3)
    child.kill()
    child.wait()
    (house.folder / "agent.walker.1").unlink()
    second = await house.start("agent.walker", incarnation=2, **settings)
    records, _ = await house.play(episodes=1, phase=1, name="more", incarnation=2)
    assert outcomes(records) == ["terminated"]
    assert second.host._mind.agent.learned == 20


# -- steps on record ------------------------------------------------------------------------------------------


def steps_of(house, phase="train"):
    table = trajectories.read(house.folder / "run", phase)
    return table.to_pandas()


async def test_every_step_of_every_episode_is_on_record(house):
    await house.pair(pool=2)
    records, end = await house.play(episodes=6, workers=2, max_steps=4)
    assert end.first_failure == ""
    steps = steps_of(house)
    assert steps.episode.tolist() == [episode for episode in range(6) for _ in range(4)]
    assert steps.step.tolist() == [0, 1, 2, 3] * 6
    assert (steps.observation.diff()[steps.step > 0] == 1).all(), (
        "what the action was taken at, not what it led to"
    )
    assert steps.groupby("episode").reward.sum().tolist() == [4.0] * 6
    assert steps.truncated.tolist() == [False, False, False, True] * 6
    assert not steps.terminated.any()
    by_index = {record.index: record for record in records}
    assert all(by_index[row.episode].worker == row.worker for row in steps.itertuples())
    assert all(by_index[row.episode].seed == row.seed for row in steps.itertuples())
    assert [path.name for path in (house.folder / "run/episodes").glob("train.*")] != []
    assert not list((house.folder / "run/episodes").glob("*.arrow"))


async def test_the_steps_of_an_episode_are_on_disk_when_it_is_reported(house):
    await house.pair()
    await house.start("simulation")
    link, seen = house.links["simulation"], []
    report = link.report

    async def read_and_report(event):
        if isinstance(event, EpisodeEnded):
            steps = steps_of(house)
            seen.append((steps.episode == event.episode.index).sum() == event.episode.steps)
        return await report(event)

    link.report = read_and_report
    await house.conductors["simulation"].perform(house.command())
    await house.end()
    assert seen == [True] * 3


async def test_failed_and_cancelled_episodes_keep_their_steps(house):
    await house.pair(fault="step", flag=str(house.folder / "flag"))
    await house.play(episodes=2)
    steps = steps_of(house)
    assert steps.groupby("episode").size().tolist() == [2, 5]
    assert steps.groupby("episode").outcome.first().tolist() == ["failed", "terminated"]


async def test_steps_of_an_earlier_life_count_where_their_episode_did(house):
    await house.pair()
    run = house.folder / "run"
    before = StepRecorder(run, phase="train", worker=0, columns=WALK)
    for index in range(3):
        before.begin(episode=index, seed=0)
        for _ in range(2):
            before.step(900, 0, 0.0, False, False)
        before.end(outcome="terminated")
    before.close()
    done = EpisodeRecord(index=0, worker=0, seed=0, outcome="terminated", value=0.0, steps=2, seconds=0.1)
    await house.play(episodes=2, done=(done,))
    assert steps_of(house).groupby("episode").size().to_dict() == {0: 2, 1: 5}


async def test_a_disk_that_is_full_of_steps_fails_that_episode_alone(house):
    await house.pair(length=300)
    controller = await house.start("simulation")
    link = house.links["simulation"]
    with full_beyond(15_000):  # holds one episode
        await controller.perform(house.command(episodes=3))
        second = await asyncio.wait_for(link.next(EpisodeEnded, after=1), 20)
    records, end = await house.end()
    assert records[0].outcome == "terminated"
    assert (second.episode.outcome, second.episode.reason) == ("failed", FULL)
    assert len(records) == len(house.lines()) == 3
    assert end.first_failure == f"episode 1: {FULL}"
    assert (steps_of(house).episode == 0).sum() == 300


async def test_a_disk_that_fills_up_in_a_long_episode_ends_it(house):
    await house.pair(entry="walk_world:Vector")
    with full_beyond(15_000):
        records, _ = await house.play(episodes=1, max_steps=5000)
    assert (records[0].outcome, records[0].reason, records[0].steps) == ("failed", FULL, 4096)


async def test_steps_that_cannot_be_finalized_are_the_parts_failure(house):
    await house.pair()
    (house.folder / "run/episodes/train.parquet.part").mkdir(parents=True)
    records, end = await house.play()
    assert outcomes(records) == ["terminated"] * 3
    assert end.failures == 1
    assert end.first_failure.startswith("cannot finalize the steps of 'train': ")
    assert len(steps_of(house)) == 15

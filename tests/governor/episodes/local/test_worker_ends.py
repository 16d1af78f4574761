"""However a worker ends in process: what it has played and what was learned is kept, and the reason is told."""

import asyncio

import pytest

from governor.episodes import trajectories
from governor.episodes.records.reports import EpisodeReports
from tests.support.in_process_commands import episodes, inside, outcomes, parallel, vector
from tests.support.reasons import without_place


@pytest.mark.parametrize(
    "more",
    [
        inside(fault="sleep"),
        vector(2, fault="sleep"),
        parallel(fault="sleep", at=3),
        inside(agent_params={"fault": "sleep", "at": 3}),
    ],
    ids=["alone", "vector", "players", "agent"],
)
async def test_the_steps_of_an_episode_that_hangs_are_on_record(harness, more):
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=1, episode_timeout=0.5, **more))
    await asyncio.wait_for(controller.failed, 20)
    (record,) = episodes(harness.links["simulation"])
    assert (record.outcome, record.steps) == ("timed_out", 2)
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    assert steps[["episode", "step", "outcome"]].to_numpy().tolist() == [
        [0, 0, "timed_out"],
        [0, 1, "timed_out"],
    ]


async def test_what_was_learned_is_kept_also_when_the_environment_exits_as_it_is_closed(harness, monkeypatch):
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**9)
    records, end = await harness.play(episodes=5, **inside(entry="leaving_world:Exits", at="close"))
    assert outcomes(records) == ["terminated"] * 5
    assert (end.end, end.failures) == ("max_episodes", 0)
    assert harness.state()["learned"] == 25


@pytest.mark.parametrize("made", [inside, lambda **more: vector(2, **more)], ids=["alone", "vector"])
async def test_whatever_ends_a_worker_its_environment_is_closed_and_its_agent_kept(
    harness, monkeypatch, made
):
    monkeypatch.setattr("governor.episodes.learned.SPARING", 10**9)
    ends = []

    def add(self, record, recorder):
        ends.append(record)
        if len(ends) == 3:
            raise RuntimeError("a fault of ours")
        real(self, record, recorder)

    real = EpisodeReports.add
    monkeypatch.setattr(EpisodeReports, "add", add)
    closed = harness.folder / "closed"
    _, end = await harness.play(episodes=9, **made(entry="leaving_world:Closes", path=str(closed)))
    assert (end.end, without_place(end.first_failure)) == (
        "stopped",
        "worker 0: RuntimeError: a fault of ours",
    )
    assert closed.exists()
    assert harness.state()["learned"] >= 15


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"entry": "leaving_world:Exits", "at": "begin"},
            "environment 'leaving_world:Exits' does not start: SystemExit: no licence",
        ),
        (
            {"agent": "leaving_world:ExitingAgent", "agent_params": {"fault": "begin"}},
            "agent 'leaving_world:ExitingAgent' does not start: SystemExit: no licence",
        ),
    ],
)
async def test_an_exit_during_the_start_is_named(harness, more, reason):
    records, end = await harness.play(**inside(**more))
    assert records == []
    assert (end.end, end.failures, without_place(end.first_failure)) == ("stopped", 1, reason)


async def test_so_is_an_agent_that_exits_over_its_state(harness):
    agent = {"agent": "leaving_world:ExitingAgent"}
    _, end = await harness.play(episodes=1, **inside(agent_params={"fault": "state"}, **agent))
    assert without_place(end.first_failure) == "agent 'walker' cannot be saved: SystemExit: no disk"
    await harness.play(episodes=1, incarnation=2, **inside())
    _, end = await harness.play(episodes=2, incarnation=3, **inside(agent_params={"fault": ""}, **agent))
    told = without_place(end.first_failure)
    assert told == "agent 'leaving_world:ExitingAgent': load_state_dict: SystemExit: no such state"

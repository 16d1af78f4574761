"""A phase in process: the episodes are those of conductors, and what is this transport's own."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from governor.episodes.records import state_file
from governor.files import write_whole
from governor.messages import (
    PartEndedReport,
    Refused,
    StopPartCommand,
)
from tests.support.in_process_commands import episodes, inside, outcomes
from tests.support.reasons import without_place

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture
def learner(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "frozen_lake"))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "frozen_lake"), prepend=os.pathsep)
    yield
    sys.modules.pop("q_learner", None)


async def both_ways(harness, *, entry, agent, phases, **params):
    """Each phase by both transports, with agents of their own: what their episodes and agents came to.

    Environment and agent conductor are processes here.
    """
    found = []
    for transport in ("conductors", "in_process"):
        more = {}
        if transport == "conductors":
            harness.spawn("environment.lake", entry=entry, params=params, pool=1)
            harness.spawn("agent.walker", entry=agent, params={})
        else:
            (harness.folder / "run/agents/walker.state").unlink()
            more = inside(entry=entry, agent=agent, **params)
        controller = await harness.start("simulation")
        link = harness.links["simulation"]
        told = []
        for phase, command in enumerate(phases):
            name = f"{transport}-{phase}"
            await controller.perform(harness.command(phase=phase, name=name, **more, **command))
            async with asyncio.timeout(60):
                while len([event for event in link.events if isinstance(event, PartEndedReport)]) <= phase:
                    await link.next(PartEndedReport, after=len(link.events))
            told += [(r.index, r.seed, r.outcome, r.value, r.steps) for r in episodes(link)]
        found.append((told, harness.state()))
    for name in ("environment.lake.1.0", "agent.walker.1"):
        (harness.folder / name).unlink()  # they are killed, not closed
    return found


@pytest.mark.parametrize("slippery", [False, True])
async def test_the_same_seed_gives_the_same_episodes_as_through_conductors(harness, learner, slippery):
    (theirs, their_state), (ours, our_state) = await both_ways(
        harness,
        entry="gymnasium:FrozenLake-v1",
        agent="q_learner:QLearner",
        phases=[{"episodes": 60, "max_steps": 100}, {"episodes": 10, "max_steps": 100, "mode": "eval"}],
        is_slippery=slippery,
    )
    assert ours == theirs
    assert len(ours) == 60 + 70
    assert (our_state["values"] == their_state["values"]).all()
    assert our_state["random"] == their_state["random"]


async def test_cart_pole_is_the_same_as_through_conductors(harness):
    (theirs, their_state), (ours, our_state) = await both_ways(
        harness,
        entry="gymnasium:CartPole-v1",
        agent="walk_world:Gradient",
        phases=[{"episodes": 20}, {"episodes": 5, "mode": "eval", "max_steps": 30}],
    )
    assert ours == theirs
    assert (our_state["weights"] == their_state["weights"]).all()
    assert our_state["weights"].any()


async def test_arrays_share_no_memory(harness):
    """An environment that writes over its last observation, and over the action that it was given."""
    log = harness.folder / "learned"
    await harness.play(
        episodes=1, max_steps=3, **inside(entry="walk_world:Overwrites", agent_params={"log": str(log)})
    )
    seen = [eval(line, TRANSITION) for line in log.read_text().splitlines()]
    assert [step["observation"][0] for step in seen] == [0, 1, 2]
    assert [step["next_observation"][0] for step in seen] == [1, 2, 3]
    assert all(step["action"][0] != 9 for step in seen)


TRANSITION = {
    "Transition": dict,
    "array": lambda values, dtype=None: values,
    "float32": None,
}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"agent_params": {"fault": "init"}},
            "agent 'walk_world:Agent' does not start: ValueError: no brain",
        ),
        (
            {"entry": "walk_world:Raises"},
            "environment 'walk_world:Raises' does not start: OSError: no display",
        ),
        (
            {"entry": "walk_world:Odd"},
            "environment 'walk_world:Odd': observation_space[\"a\"]: Unknown is none of gymnasium's own spaces: use those",
        ),
    ],
)
async def test_what_cannot_be_built_ends_the_part(harness, more, reason):
    records, end = await harness.play(**inside(**more))
    assert records == []
    assert (end.end, end.failures, without_place(end.first_failure)) == ("stopped", 1, reason)


async def test_a_slow_environment_times_out_and_continues(harness):
    records, end = await harness.play(
        episodes=2, episode_timeout=0.1, **inside(fault="slow", flag=str(harness.folder / "flag"))
    )
    assert outcomes(records) == ["timed_out", "terminated"]
    assert records[0].reason == "longer than 0.1 s"
    assert end.end == "max_episodes"


async def test_a_stop_cancels_at_the_next_step(harness):
    controller = await harness.start("simulation")
    await controller.perform(harness.command(**inside(entry="walk_world:Endless")))
    async with asyncio.timeout(20):
        while not (harness.folder / "run/episodes/train.jsonl").exists():
            await asyncio.to_thread(lambda: None)
    await controller.perform(StopPartCommand(phase=0, reason="abort"))
    records, end = await harness.end()
    assert end.end == "stopped"
    assert end.failures == 0
    assert outcomes(records) in ([], ["cancelled"])


async def test_an_agent_lives_on_in_the_next_phase(harness):
    controller = await harness.start("simulation")
    for phase in range(2):
        command = harness.command(phase=phase, name=f"p{phase}", **inside(agent="walk_world:Forgetful"))
        await controller.perform(command)
        await harness.links["simulation"].next(PartEndedReport, after=4 * phase)
    assert [record.value for record in episodes(harness.links["simulation"])] == [5, 5, 5, 5, 5, 5]
    assert len(controller._agents["walker"]._learned.agent.phases) == 6


async def test_a_command_that_does_not_say_what_to_build_is_refused(harness):
    controller = await harness.start("simulation")
    assert isinstance(await controller.perform(harness.command(transport="in_process")), Refused)


async def test_an_agent_that_cannot_be_saved_fails_its_episodes(harness):
    records, end = await harness.play(episodes=2, **inside(agent="walk_world:Unsaveable"))
    assert outcomes(records) == ["failed", "failed"]
    assert records[1].reason.startswith("agent.state_dict: TypeError")
    assert end.first_failure.startswith("agent 'walker' cannot be saved: TypeError")


async def test_what_was_learned_is_synced_at_the_end_of_the_part(harness, monkeypatch):
    saved = []

    def write(path, data, *, sync=True):
        saved.append((state_file.loads(data)["learned"], sync))
        plain(path, data, sync=sync)

    plain = write_whole
    for module in ("learned", "records.state_file"):
        monkeypatch.setattr(f"governor.episodes.{module}.write_whole", write)
    await harness.play(episodes=50, **inside())
    assert (saved[0][1], saved[-1]) == (True, (250, True))

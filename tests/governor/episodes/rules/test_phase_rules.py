"""The rules of a phase in both transports: evaluation while training pauses, limits, checkpoints, and what a later life does."""

import asyncio
import json

import msgspec
import pytest

from governor.conductors.simulation import copy_through_conductors
from governor.episodes import trajectories
from governor.episodes.records import state_file
from governor.episodes.remote import control
from governor.messages import (
    Checkpoint,
    Done,
    EpisodeEnded,
    Evaluate,
    Plateau,
    Refused,
    StopPartCommand,
    Until,
)
from governor.messages.link import RecordingLink
from tests.support.in_process_commands import inside, outcomes, vector
from transport.errors import ServiceNotFound

WALK = 5
"""Steps of an episode."""
BOTH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector"])


@pytest.fixture
def stage(harness):
    """`await stage(transport, **agent_params)` gives what a command says more."""

    async def set_up(transport, *, agent="rules_world:Late", pool=2, **params):
        if transport == "conductors":
            await harness.pair(agent=agent, agent_params=params, pool=pool)
            return {"workers": pool}
        made = (
            vector(2, agent=agent, agent_params=params)
            if transport == "vector"
            else inside(agent=agent, agent_params=params)
        )
        return {**made, "workers": pool}

    return set_up


def trained(records):
    return [record for record in records if not record.evaluation]


def evaluated(records):
    return [record for record in records if record.evaluation]


def checkpoints(harness, phase="train"):
    folder = harness.folder / "run/checkpoints" / phase
    index = json.loads((folder / "index.json").read_text())
    states = {path.name: state_file.load(path)["learned"] for path in folder.glob("*.state")}
    return index, states


# -- evaluation -----------------------------------------------------------------------------------------------


@BOTH
async def test_training_pauses_for_evaluations_that_neither_explore_nor_learn(harness, stage, transport):
    log = harness.folder / "explore"
    agent = "rules_world:LateMany" if transport == "vector" else "rules_world:Late"
    command = await stage(transport, agent=agent, log=str(log))
    records, end = await harness.play(episodes=7, evaluate=Evaluate(every=3, episodes=4), **command)
    assert (end.end, end.failures) == ("max_episodes", 0)
    assert [record.evaluation for record in records] == [0] * 3 + [1] * 4 + [0] * 3 + [2] * 4 + [0]
    assert sorted(record.index for record in records) == list(range(15))
    # In a vector two episodes may act at once, but never two of different kinds.
    blocks = ["x" * 3 * WALK, "." * 4 * WALK, "x" * 3 * WALK, "." * 4 * WALK, "x" * WALK]
    assert log.read_text() == "".join(blocks)
    assert harness.state()["learned"] == 7 * WALK
    assert end.metrics["episodes_ended"] == 7
    assert (end.metrics["evaluations"], end.metrics["evaluation_return_mean"]) == (2, 5.0)
    assert [line["evaluation"] for line in harness.lines()] == [record.evaluation for record in records]
    steps = trajectories.read(harness.folder / "run", "train").to_pandas()
    assert (steps.episode >= 7).sum() == 8 * WALK


async def test_evaluations_have_seeds_of_their_own_the_same_on_every_transport(harness, stage):
    found = []
    for phase, transport in enumerate(["conductors", "in_process"]):
        command = await stage(transport)
        name = f"train-{transport}"
        records, _ = await harness.play(
            phase=0,
            name=name,
            episodes=4,
            evaluate=Evaluate(every=2, episodes=3),
            incarnation=phase + 1,
            **command,
        )
        found.append({record.index: record.seed for record in records})
    assert found[0] == found[1]
    seeds = found[0]
    assert [seeds[4], seeds[5], seeds[6]] == [seeds[7], seeds[8], seeds[9]]
    assert len(set(seeds.values())) == 4 + 3


@BOTH
async def test_success_in_consecutive_evaluations_ends_the_phase(harness, stage, transport):
    command = await stage(transport, at=4 * WALK)
    evaluate = Evaluate(every=2, episodes=3, at_least=5.0, consecutive=2)
    records, end = await harness.play(episodes=100, evaluate=evaluate, **command)
    assert end.end == "until"
    assert len(trained(records)) == 6, "good after 4, seen after 4 and 6"
    assert [record.value for record in evaluated(records)] == [0.0] * 3 + [5.0] * 6
    assert end.metrics["evaluation_return_best"] == 5.0


async def test_a_plateau_ends_the_phase(harness, stage):
    command = await stage("in_process")
    evaluate = Evaluate(every=1, episodes=1, plateau=Plateau(patience=2))
    records, end = await harness.play(episodes=100, evaluate=evaluate, **command)
    assert (end.end, len(trained(records)), len(evaluated(records))) == ("until", 3, 3)


@BOTH
@pytest.mark.parametrize("known", [1, 3, 5, 6, 9])
async def test_a_later_process_continues_where_the_record_ends(harness, stage, transport, known):
    """Wherever the first life ended: in training, between, and in the midst of an evaluation."""
    command = await stage(transport)
    rules = {"episodes": 6, "evaluate": Evaluate(every=3, episodes=4, at_least=5.0, consecutive=2)}
    first, _ = await harness.play(**rules, **command)
    again, end = await harness.play(done=tuple(first[:known]), incarnation=2, **rules, **command)
    assert sorted(record.index for record in [*first[:known], *again]) == list(range(14))
    both = [record.evaluation for record in [*first[:known], *again]]
    assert both == [0] * 3 + [1] * 4 + [0] * 3 + [2] * 4
    assert (end.end, end.metrics["evaluations"]) == ("until", 2)
    assert {record.seed for record in again if record.evaluation == 2} == {
        record.seed for record in first if record.evaluation == 1
    }


async def test_evaluation_episodes_that_fail_are_failures_of_the_phase(harness):
    evaluate = Evaluate(every=1, episodes=1, at_least=0.0)
    made = inside(agent="rules_world:Late", entry="walk_world:Tires", at=WALK + 2, fault="step")
    records, end = await harness.play(episodes=2, evaluate=evaluate, **made)
    assert outcomes(records) == ["terminated", "failed", "terminated", "terminated"]
    assert (end.end, end.failures) == ("until", 1)
    assert end.first_failure.startswith("episode 2: environment.step")


async def test_a_stop_in_the_midst_of_an_evaluation_ends_it(harness, stage):
    command = await stage("conductors")
    await harness.start("simulation")
    controller, link = harness.conductors["simulation"], harness.links["simulation"]
    evaluate = Evaluate(every=1, episodes=100_000)
    assert await controller.perform(harness.command(episodes=2, evaluate=evaluate, **command)) == Done()
    await asyncio.wait_for(link.next(EpisodeEnded, after=2), 20)
    await controller.perform(StopPartCommand(phase=0, reason="enough"))
    records, end = await harness.end()
    assert (end.end, end.failures) == ("stopped", 0)
    assert len(trained(records)) == 1
    assert "evaluations" not in end.metrics


async def test_a_command_with_an_unknown_metric_is_refused(harness):
    controller = await harness.start("simulation")
    command = harness.command(evaluate=Evaluate(every=1, episodes=1, metric="loss"))
    assert isinstance(await controller.perform(command), Refused)


# -- until ----------------------------------------------------------------------------------------------------


@BOTH
async def test_so_many_steps_end_the_phase(harness, stage, transport):
    command = await stage(transport)
    records, end = await harness.play(episodes=10_000, until=(Until(steps=4 * WALK - 1),), **command)
    assert end.end == "until"
    ended = [record for record in records if record.outcome == "terminated"]
    assert 4 <= len(ended) <= 4 + 4, "no more than those that ran beside the last one"


@BOTH
async def test_the_wall_clock_cancels_what_runs(harness, stage, transport):
    made = {"entry": "walk_world:Vector"}
    if transport == "conductors":
        await harness.pair(agent="walk_world:Agent", pool=2, **made)
        command = {}
    else:
        command = vector(2, **made) if transport == "vector" else inside(**made)
    records, end = await harness.play(episodes=10_000, workers=2, until=(Until(wall_clock=0.4),), **command)
    assert end.end == "until"
    assert set(outcomes(records)) <= {"cancelled"}, "they have no end of their own"


async def test_the_wall_clock_counts_what_an_earlier_life_has_played(harness, stage):
    command = await stage("in_process")
    first, _ = await harness.play(episodes=1, **command)
    done = (msgspec.structs.replace(first[0], seconds=1000.0),)
    _, end = await harness.play(
        episodes=10**7, done=done, until=(Until(wall_clock=1000.0),), incarnation=2, **command
    )
    assert end.end == "until"


# -- checkpoints ----------------------------------------------------------------------------------------------


@BOTH
async def test_checkpoints_hold_what_was_learned_when_they_were_taken(harness, stage, transport):
    command = await stage(transport)
    wanted = Checkpoint(every=3, keep=2, last=True)
    _, end = await harness.play(episodes=10, checkpoint=wanted, **command)
    assert (end.end, end.first_failure) == ("max_episodes", "")
    index, states = checkpoints(harness)
    assert states == {
        "walker.6.state": 6 * WALK, "walker.9.state": 9 * WALK, "walker.last.state": 10 * WALK,
    }  # fmt: skip
    assert [entry["episodes"] for entry in index["every"]] == [6, 9]
    assert [entry["files"] for entry in index["every"]] == [
        {"walker": "walker.6.state"},
        {"walker": "walker.9.state"},
    ]
    assert (index["last"]["episodes"], index["best"]) == (10, None)


@BOTH
async def test_the_best_is_that_of_the_best_evaluation(harness, stage, transport):
    command = await stage(transport, at=4 * WALK, until=6 * WALK)
    evaluate = Evaluate(every=2, episodes=2)
    await harness.play(episodes=8, evaluate=evaluate, checkpoint=Checkpoint(best=True), **command)
    index, states = checkpoints(harness)
    assert states == {"walker.best.state": 4 * WALK}, "it was no good before, and no better after"
    assert (index["best"]["episodes"], index["best"]["metric"]) == (4, 5.0)


async def test_where_less_is_better_the_best_is_the_least(harness, stage):
    command = await stage("in_process", until=4 * WALK, at=2 * WALK)
    evaluate = Evaluate(every=2, episodes=2, at_most=-1.0)
    await harness.play(episodes=6, evaluate=evaluate, checkpoint=Checkpoint(best=True), **command)
    index, _ = checkpoints(harness)
    assert (index["best"]["episodes"], index["best"]["metric"]) == (4, 0.0)


async def test_an_evaluation_that_says_nothing_is_not_the_best(harness):
    made = inside(agent="rules_world:Late", entry="walk_world:Tires", at=WALK + 2, fault="step")
    evaluate = Evaluate(every=1, episodes=1)
    _, end = await harness.play(episodes=1, evaluate=evaluate, checkpoint=Checkpoint(best=True), **made)
    assert end.failures == 1
    assert not (harness.folder / "run/checkpoints").exists()


async def test_without_evaluation_the_best_is_by_the_mean_return_since_the_checkpoint_before(harness, stage):
    command = await stage("in_process", at=4 * WALK, until=6 * WALK)
    await harness.play(episodes=8, checkpoint=Checkpoint(every=2, best=True), **command)
    index, states = checkpoints(harness)
    assert [entry["metric"] for entry in index["every"]] == [0.0, 0.0, 5.0, 0.0]
    assert states["walker.best.state"] == 6 * WALK


async def test_the_end_waits_for_the_state_of_a_success(harness, stage):
    command = await stage("conductors", agent="rules_world:Slow")
    evaluate = Evaluate(every=2, episodes=2, at_least=5.0)
    _, end = await harness.play(episodes=100, evaluate=evaluate, checkpoint=Checkpoint(best=True), **command)
    assert end.end == "until"
    assert checkpoints(harness)[1] == {"walker.best.state": 2 * WALK}


@BOTH
async def test_a_later_life_takes_the_checkpoint_that_an_earlier_one_did_not_come_to(
    harness, stage, transport
):
    command = await stage(transport)
    first, _ = await harness.play(episodes=3, **command)
    wanted = Checkpoint(every=3)
    await harness.play(episodes=6, done=tuple(first), checkpoint=wanted, incarnation=2, **command)
    index, states = checkpoints(harness)
    assert [entry["episodes"] for entry in index["every"]] == [3, 6]
    assert states["walker.3.state"] == 3 * WALK
    before = index["every"]
    await harness.play(episodes=6, done=tuple(first), checkpoint=wanted, incarnation=3, **command)
    assert checkpoints(harness)[0]["every"] == before, "those that are there stay"
    whole = {"episodes": 3, "done": tuple(first), "checkpoint": Checkpoint(last=True)}
    again, _ = await harness.play(incarnation=4, **whole, **command)
    assert (again, checkpoints(harness)[0]["last"]["episodes"]) == ([], 3)


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("rules_world:Stateless", "no state_dict"),
        ("walk_world:Unsaveable", "which cannot be saved"),
    ],
)
async def test_a_checkpoint_that_cannot_be_taken_is_the_phases_failure_and_the_episodes_go_on(
    harness, stage, transport, agent, reason
):
    command = await stage(transport, agent=agent)
    mode = {"mode": "eval"} if agent == "walk_world:Unsaveable" else {}
    records, end = await harness.play(episodes=4, checkpoint=Checkpoint(every=2), **mode, **command)
    assert outcomes(records) == ["terminated"] * 4
    assert (end.end, end.failures) == ("max_episodes", 1)
    assert end.first_failure.startswith("cannot take a checkpoint: ")
    assert reason in end.first_failure


async def test_an_agent_conductor_that_dies_meanwhile_is_waited_for(harness):
    flag = harness.folder / "flag"
    await harness.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
    settings = {"entry": "rules_world:Dies", "params": {"flag": str(flag)}}
    child = harness.spawn("agent.walker", **settings)
    await harness.play(episodes=2)
    flag.touch()
    controller = await harness.start("simulation", incarnation=2)
    wanted = harness.command(phase=1, name="check", mode="eval", episodes=1, checkpoint=Checkpoint(last=True))
    assert await controller.perform(wanted) == Done()
    assert await asyncio.to_thread(child.wait, 20) == 9
    (harness.folder / "agent.walker.1").unlink()
    await harness.start("agent.walker", incarnation=2, **settings)
    _, end = await harness.end()
    assert (end.first_failure, checkpoints(harness, "check")[1]) == ("", {"walker.last.state": 2 * WALK})


class Away:
    """A client of a broker that knows the service at the second try."""

    def __init__(self):
        self.asked = []

    async def request(self, service, body, *, timeout, idempotent):  # noqa: ASYNC109  # as a client has it
        self.asked.append((service, control.decode_agent_control(body), idempotent))
        if len(self.asked) == 1:
            raise ServiceNotFound(service, "nobody serves it")
        return [control.encode(control.Accepted())]


async def test_a_service_that_is_gone_is_asked_again(tmp_path):
    client = Away()
    copy = copy_through_conductors(RecordingLink(client), "u1", join={}.get)
    await copy("walker", tmp_path / "x.state")
    assert client.asked == [("agent.u1.walker", control.Copy(path=str(tmp_path / "x.state")), True)] * 2


# -- beginning from a state -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_an_agent_begins_from_a_checkpoint_and_then_from_its_own_state(harness, transport):
    path = harness.folder / "given.state"
    state_file.save(path, {"learned": 1000})
    for incarnation in (1, 2):
        if transport == "conductors":
            if incarnation == 1:
                await harness.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
            else:
                await harness.conductors["agent.walker"].close()
            settings = {"entry": "rules_world:Late", "params": {}, "state": str(path)}
            await harness.start("agent.walker", incarnation=incarnation, **settings)
            command = {}
        else:
            command = inside(agent="rules_world:Late", agent_state=str(path))
        await harness.play(episodes=1, incarnation=incarnation, **command)
        assert harness.state()["learned"] == 1000 + incarnation * WALK


@pytest.mark.parametrize("content", [None, b"nonsense"])
async def test_a_state_that_cannot_be_read_is_named_before_anything_is_played(harness, content):
    path = harness.folder / "given.state"
    if content is not None:
        path.write_bytes(content)
    records, end = await harness.play(**inside(agent="rules_world:Late", agent_state=str(path)))
    assert (records, end.end, end.failures) == ([], "stopped", 1)
    assert str(path) in end.first_failure
    with pytest.raises(Exception, match=str(path)):
        await harness.start("agent.walker", entry="rules_world:Late", params={}, state=str(path))

"""A vector whose environments step together, in process and through conductors: its episodes and steps on record, whatever way it resets, and its faults."""

import asyncio
import os

import numpy as np
import pytest

from governor.episodes import trajectories
from governor.episodes.agent_calls import AgentCalls
from governor.episodes.records import batch_recording, stream
from governor.episodes.rules.seeds import episode_seed
from governor.episodes.spaces import Discrete
from governor.episodes.vectors.vector_environment import VectorEnvironment, value_of
from governor.errors import ConductorError
from governor.messages import EpisodeEnded, Evaluate, Failures, StopPartCommand, Until
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import episodes, inside, outcomes, told, vector
from tests.support.native_vectors import native, require_whole, steps_of, with_conductors
from tests.support.reasons import without_place

MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])


@pytest.fixture(params=["in_process", "conductors"])
def harness(request, harness):
    """Plays such vectors with each transport: `staged` is their command for it, with what it needs."""

    async def staged(command):
        made = command.get("made_environment")
        is_inside = request.param == "in_process" or made is None or made.vector_mode == "sync"
        return command if is_inside else await with_conductors(harness, command)

    async def play(*, play=harness.play, **command):
        return await play(**await staged(command))

    harness.transport, harness.staged, harness.play = request.param, staged, play
    return harness


@MODES
@pytest.mark.parametrize("agent", ["Stands", "OneByOne"])
async def test_each_episode_is_on_record_as_it_was(harness, mode, agent):
    records, end = await harness.play(episodes=23, **native(mode=mode, agent=agent))
    assert (end.end, end.first_failure, outcomes(records)) == ("max_episodes", "", ["terminated"] * 23)
    assert sorted(record.index for record in records) == list(range(23))
    assert all(record.value == record.steps >= 3 for record in records)
    steps = steps_of(harness)
    require_whole(steps, records)
    assert steps.groupby("episode").terminated.sum().tolist() == [1] * 23
    assert set(steps.action) == {1}
    assert set(steps.worker) == {record.worker for record in records} == {0}


@MODES
async def test_the_agent_learns_from_each_step_of_each_environment(harness, mode):
    records, _ = await harness.play(episodes=12, **native(mode=mode))
    learned = harness.state()["learned"]
    assert len(learned) == sum(record.steps for record in records)
    assert {worker for worker, *_ in learned} == {0, 1, 2, 3}
    for record in records:
        mine = [each for each in learned if each[1] == record.index]
        assert [step for _, _, step, _, _ in mine] == list(range(record.steps))
        assert [place for *_, place, _ in mine] == list(range(1, record.steps + 1)), "also the last one"
        assert [over for *_, over in mine] == [0.0] * (record.steps - 1) + [1.0]


@MODES
@pytest.mark.parametrize("phase", ["train", "eval"])
async def test_actions_may_be_arrays(harness, mode, phase):
    command = native(mode=mode, agent="Reaches", reaches=True)
    records, end = await harness.play(episodes=12, **command | {"mode": phase})
    assert (end.fault, outcomes(records)) == ("", ["terminated"] * 12)
    require_whole(steps_of(harness), records)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_reset_that_raises_fails_those_under_way_and_the_rest_are_played(harness, size, number):
    flag = str(harness.folder / "flag")
    command = native(size, mode="Disabled", fault="floor", fault_at=number, flag=flag)
    records, end = await harness.play(episodes=12, **command)
    assert sorted(record.index for record in records) == list(range(12))
    failed = [record for record in records if record.outcome == "failed"]
    assert 1 <= len(failed) <= size
    assert {without_place(record.reason) for record in failed} == {
        "environment.reset: RuntimeError: no floor"
    }
    assert outcomes(records).count("terminated") == 12 - len(failed)
    assert end.end == "max_episodes"
    require_whole(steps_of(harness), records)


RESET = VectorEnvironment._reset


async def test_single_ones_that_can_be_reset_have_the_seeds_of_their_episodes(harness, monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "governor.episodes.vectors.vector_environment.VectorEnvironment._reset",
        lambda self, asked, *more: seeds.append(asked["seed"]) or RESET(self, asked, *more),
    )
    records, _ = await harness.play(episodes=10, **native(mode="Disabled"))
    assert outcomes(records) == ["terminated"] * 10
    assert sorted(record.seed for record in records) == sorted(episode_seed(7, 0, each) for each in range(10))
    if harness.transport == "conductors":
        return  # another process resets them
    given = [seed for each in seeds for seed in each if seed is not None]
    assert sorted(given) == sorted(record.seed for record in records)


@MODES
async def test_long_episodes_are_written_in_parts(harness, monkeypatch, mode):
    monkeypatch.setattr(batch_recording, "ROUNDS", 2)
    records, _ = await harness.play(episodes=9, **native(mode=mode))
    require_whole(steps_of(harness), records)


@pytest.mark.parametrize("agent", ["Leans", "LeansTogether"])
@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_what_is_on_record_is_that_of_an_environment_alone(harness, monkeypatch, agent, mode):
    """But for the order of the episodes, and for how much was learned before a step."""
    monkeypatch.setattr(batch_recording, "ROUNDS", 7)
    common = {"episodes": 30, "max_steps": 60, "mode": mode}
    alone = inside(entry="gymnasium:CartPole-v1", agent="vector_world:Leans")
    one_by_one, _ = await harness.play(name="alone", **common, **alone)
    together = native(entry="vector_world:poles", agent=agent)
    records, _ = await harness.play(incarnation=2, **common, **together)
    assert told(records) == told(one_by_one)
    tables = [trajectories.read(harness.folder / "run", phase) for phase in ("alone", "train")]
    before, after = (table.drop_columns(["phase", "weight_version"]) for table in tables)
    assert after.equals(before)
    steps = sum(record.steps for record in records)
    learned = mode == "train"
    assert sorted(tables[0]["weight_version"].to_pylist()) == ([*range(steps)] if learned else [0] * steps)


@MODES
@pytest.mark.parametrize("endless", [False, True])
async def test_max_steps_ends_episodes_and_the_next_ones_begin_at_the_beginning(harness, mode, endless):
    records, _ = await harness.play(episodes=15, max_steps=2, **native(mode=mode, endless=endless))
    assert outcomes(records) == ["truncated"] * 15
    assert {record.steps for record in records} == {2}
    require_whole(steps_of(harness), records)


@MODES
@pytest.mark.parametrize(
    ("fault", "reason", "steps"),
    [
        ("nan", "environment.step: ValueError: observation: it holds NaN", 2),
        ("reward", "environment.step: ValueError: the reward is inf", 2),
        ("reset", "environment.reset: ValueError: observation: it holds NaN", 0),
    ],
)
async def test_values_that_are_none_are_the_fault_of_one_episode(harness, mode, fault, reason, steps):
    flag = str(harness.folder / "flag")
    records, end = await harness.play(episodes=12, **native(mode=mode, fault=fault, flag=flag))
    [failed] = [record for record in records if record.outcome == "failed"]
    assert (without_place(failed.reason), failed.steps, end.failures) == (reason, steps, 1)
    assert sorted(record.index for record in records) == list(range(12))
    require_whole(steps_of(harness), records)


@MODES
async def test_where_no_episode_begins_all_are_reset_again(harness, mode):
    faults = {"fault": "reset", "flag": str(harness.folder / "flag")}
    records, _ = await harness.play(episodes=12, **native(mode=mode, agent="Hesitates", **faults))
    failed = [record.reason.partition(":")[0] for record in records if record.outcome == "failed"]
    assert sorted(failed) == ["agent.begin"] * 3 + ["environment.reset"]
    require_whole(steps_of(harness), records)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
async def test_a_first_observation_that_is_none_begins_no_episode(harness, mode):
    fault_at = 5 if mode == "NextStep" else 4  # of the second environment
    fault = {"fault": "nan", "fault_at": fault_at, "flag": str(harness.folder / "flag")}
    records, _ = await harness.play(episodes=12, **native(mode=mode, **fault))
    assert outcomes(records) == ["terminated"] * 12
    require_whole(steps_of(harness), records)


@MODES
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "environment.step: RuntimeError: no floor"),
        ("shape", "environment.step: ValueError: observation: shape (1,) where the space has (2,)"),
        ("none", "environment.step: ValueError: observations: None is no array of float32"),
    ],
)
async def test_an_error_of_the_vector_is_that_of_all_under_way(harness, monkeypatch, mode, fault, reason):
    streams, create = [], stream.create
    monkeypatch.setattr(stream, "create", lambda *given: streams.append(given) or create(*given))
    flag = str(harness.folder / "flag")
    records, _ = await harness.play(episodes=12, **native(mode=mode, fault=fault, flag=flag))
    failed = [record for record in records if record.outcome == "failed"]
    assert [record.steps for record in failed] == [2] * 4
    assert all(record.reason.startswith(reason) for record in failed)
    assert outcomes(records).count("terminated") == 12 - 4
    assert len(streams) == 1, "that of the vector before"
    require_whole(steps_of(harness), records)


@pytest.mark.parametrize(
    ("fault", "reason", "failures"),
    [("act", "agent.act: KeyError: 'no idea'", 4), ("learn", "agent.learn: ZeroDivisionError", 1)],
)
async def test_an_error_of_the_agent(harness, fault, reason, failures):
    records, _ = await harness.play(episodes=12, **native(agent_params={"fault": fault}))
    failed = [record for record in records if record.outcome == "failed"]
    assert {without_place(record.reason) for record in failed} == {reason}
    assert len(failed) == failures
    assert len(records) == 12


@pytest.mark.parametrize("final", ["final_obs", "final_observation"])
async def test_the_last_observation_of_one_that_is_reset_in_the_same_step(harness, final):
    records, _ = await harness.play(episodes=8, **native(mode="SameStep", final=final))
    ends = {int(episode): place for _, episode, _, place, over in harness.state()["learned"] if over}
    assert ends == {record.index: record.steps for record in records}


async def test_one_that_does_not_tell_it_has_failed(harness):
    records, _ = await harness.play(episodes=4, **native(mode="SameStep", final=""))
    reason = (
        "environment.step: ValueError: its infos have no final_obs, and it has been reset in the same step"
    )
    assert {without_place(record.reason) for record in records} == {reason}
    assert not any(over for *_, over in harness.state()["learned"])


async def test_a_reward_that_is_a_text_is_none(harness):
    flag = str(harness.folder / "flag")
    records, _ = await harness.play(episodes=8, **native(fault="text", flag=flag))
    [failed] = [record for record in records if record.outcome == "failed"]
    assert failed.reason.startswith("environment.step: ValueError: the reward is a str, not a number")


async def test_an_episode_that_failed_is_played_again_and_its_last_attempt_counts(harness):
    flag = str(harness.folder / "flag")
    command = native(fault="raise", flag=flag)
    records, _ = await harness.play(episodes=9, failures=Failures(retry=2), **command)
    assert sorted((record.index, record.outcome) for record in records) == [
        (index, "terminated") for index in range(9)
    ]
    steps = steps_of(harness)
    require_whole(steps, records)
    assert set(steps.attempt) == {1, 2}


async def test_evaluations_take_their_turn(harness):

    command = native() | {"evaluate": Evaluate(every=6, episodes=3)}
    records, _ = await harness.play(episodes=12, **command)
    require_whole(steps_of(harness), records)
    learned = {int(episode) for _, episode, *_ in harness.state()["learned"]}
    assert learned == {record.index for record in records if record.index in range(12)}
    assert len(records) == 12 + 2 * 3


async def test_no_report_waits_for_the_end_of_another_episode(harness):
    """The first one is sent at once, and the second, a step later, with those of the moment: there are none."""
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=4, **await harness.staged(native(endless=2))))
    link = harness.links["simulation"]
    async with asyncio.timeout(20):
        first = await link.next(EpisodeEnded)
        second = await link.next(EpisodeEnded, after=link.events.index(first) + 1)
    assert [first.episode.steps, second.episode.steps] == [3, 4]
    await controller.perform(StopPartCommand(phase=0, reason="enough"))
    records, _ = await harness.end()
    assert outcomes(records) == ["terminated"] * 2 + ["cancelled"] * 2
    require_whole(steps_of(harness), records)


async def test_until_ends_all(harness):
    until = (Until(metric="return", at_least=3.0, average_over=4),)
    records, end = await harness.play(episodes=5000, until=until, **native())
    assert end.end == "until"
    assert set(outcomes(records)) <= {"terminated", "cancelled"}
    require_whole(steps_of(harness), records)


async def test_a_disk_that_is_full_fails_episodes_and_not_the_phase(harness):
    command = native(size=64, endless=True, agent="OneByOne")
    with full_beyond(30_000):
        records, end = await harness.play(episodes=128, max_steps=40, **command)
    reasons = {record.reason for record in records if record.outcome == "failed"}
    assert reasons == {"cannot record its steps: OSError: [Errno 27] File too large"}
    assert (len(records), end.end) == (128, "max_episodes")


async def fault_of(harness, command):
    """Of a vector that cannot be built: its conductor does not start."""
    if harness.transport == "conductors":
        with pytest.raises(ConductorError) as raised:
            await harness.play(episodes=2, **command)
        return raised.value.reason
    _, end = await harness.play(episodes=2, **command)
    return end.fault


async def test_what_has_no_arrays_is_told_to_say_sync(harness):
    command = native(entry="gymnasium:Blackjack-v1", stepped="async", size=1)
    assert "say vector: {num_envs: N, mode: sync}" in await fault_of(harness, command)


async def test_an_id_without_a_vector_of_its_own_is_told_what_there_is(harness):
    command = native(entry="gymnasium:FrozenLake-v1")
    assert (await fault_of(harness, command)).endswith("say mode: sync, or mode: async")


# -- processes ----------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_episodes_in_processes_are_those_without(harness):
    beside = vector(3, entry="gymnasium:FrozenLake-v1", agent="vector_world:OneByOne")
    alone, _ = await harness.play(episodes=12, max_steps=50, name="alone", mode="eval", **beside)
    command = native(3, entry="gymnasium:FrozenLake-v1", agent="OneByOne", stepped="async")
    records, _ = await harness.play(episodes=12, max_steps=50, incarnation=2, mode="eval", **command)
    assert outcomes(records).count("failed") == 0
    steps = [steps_of(harness, phase) for phase in ("alone", "train")]
    for column in ("episode", "step", "observation", "action", "reward", "terminated", "truncated", "seed"):
        assert steps[0][column].tolist() == steps[1][column].tolist(), column
    assert len(alone) == len(records) == 12


@pytest.mark.timeout(120)
@pytest.mark.parametrize("which", [0, 1])
async def test_a_process_that_dies_fails_those_under_way_and_others_take_its_place(harness, which):
    """Also where the step of the other one has been taken already when the end is noticed."""
    flag, seed = str(harness.folder / "flag"), episode_seed(harness.command().seed, 0, which)
    command = native(
        2, entry="vector_world:Dies", agent="OneByOne", stepped="async", flag=flag, dies_with=seed
    )
    records, _ = await harness.play(episodes=6, **command)
    failed = [record for record in records if record.outcome == "failed"]
    assert {record.reason.partition(":")[0] for record in failed} == {"environment.step"}
    assert len(failed) == 2
    assert outcomes(records).count("terminated") == 4


@pytest.mark.timeout(120)
async def test_an_operating_system_error_of_one_environment_is_no_death_and_all_are_closed(harness):
    flag, seed = str(harness.folder / "flag"), episode_seed(harness.command().seed, 0, 0)
    command = native(
        2, entry="vector_world:Tells", agent="OneByOne", stepped="async", flag=flag, dies_with=seed
    )
    records, _ = await harness.play(episodes=6, **command)
    failed = [without_place(record.reason) for record in records if record.outcome == "failed"]
    assert failed == ["environment.step: FileNotFoundError: no map"] * 2
    builders = {f"closed-{os.getpid()}"}  # Gymnasium builds one for its spaces
    if harness.transport == "conductors":
        [process] = harness.conductors["environment.lake"].pool._processes
        builders.add(f"closed-{process.pid}")
        await harness.conductors["environment.lake"].close()
    closed = {path.name for path in harness.folder.glob("closed-*")}
    assert len(closed - builders) == 4, "those of the first vector, and of the next one"


@pytest.mark.parametrize("harness", ["in_process"], indirect=True)
async def test_a_hang_is_found(harness):
    controller = await harness.start("simulation")
    stuck = native(agent="Sleeps")
    await controller.perform(harness.command(episodes=9, episode_timeout=0.3, **stuck))
    reason = await asyncio.wait_for(controller.failed, 20)
    assert reason.startswith("agent 'walker' hangs in episode ")
    hung = [record for record in episodes(harness.links["simulation"]) if record.outcome == "timed_out"]
    assert [record.worker for record in hung] == [0] * 4


def test_agents_that_act_for_one_get_numbers_and_arrays_as_from_one_environment():
    class Looks:
        def act(self, observation, *, explore):
            seen.append(observation)
            return 1

    seen = []
    act = AgentCalls(Looks(), Discrete(n=2, start=0)).act_batch_of(explore=False)
    act(np.array([4, 2]), [0, 1])
    assert [(type(each), each) for each in seen] == [(int, 4), (int, 2)]
    assert (value_of(np.int64(3)), type(value_of(np.int64(3)))) == (3, int)
    assert (value_of(np.float32(0.5)).shape, float(value_of(np.float32(0.5)))) == ((), 0.5)

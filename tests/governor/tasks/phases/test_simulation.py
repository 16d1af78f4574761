"""Episodes on a real Ray: the same as elsewhere, whatever becomes of the runners that play them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from governor.conductors.simulation import SimulationController
from governor.episodes import trajectories
from governor.episodes.records import state_file
from governor.episodes.records.episode_file import streams_of
from governor.episodes.records.recording import ROWS
from governor.episodes.remote.worker import MAX_ATTEMPTS
from governor.messages import Done, EpisodeAttemptEnded, EpisodeEnded, PartEndedReport, Until
from governor.messages.link import RecordingLink
from tests.support.figures import with_done
from tests.support.in_process_commands import WORLDS, outcomes
from tests.support.in_process_commands import episodes as told
from tests.support.living import lives
from tests.support.reasons import without_place
from tests.support.tasks.ray_episodes import Phases, once_each, pids, seeds, with_params

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

USER_CODE = Path(__file__).parents[1] / "user_code"


@pytest.fixture
def phases(harness):
    return Phases(harness)


async def test_short_ones_travel_in_chunks_and_are_played_by_runners_that_were_built_once(phases, tmp_path):
    built = tmp_path / "built"
    command = with_params(phases.command(episodes=2000, workers=2), built=str(built))
    records, end = await phases.play(command)
    assert (end.end, end.failures, end.first_failure) == ("max_episodes", 0, "")
    assert once_each(records, 2000)
    assert set(outcomes(records)) == {"terminated"}
    assert len(pids(built)) == len(set(pids(built))) <= 2
    assert {record.worker for record in records} == {0, 1}
    table = phases.steps(command)
    assert table["episode"].to_pylist() == [index for index in range(2000) for _ in range(5)]
    assert streams_of(phases.harness.folder, command.name) == []
    path = phases.harness.folder / "episodes" / f"{command.name}.jsonl"
    assert len(path.read_text().splitlines()) == 2000


async def in_process(command, harness, folder, monkeypatch):
    """The same phase by the other transport."""
    monkeypatch.syspath_prepend(str(USER_CODE))
    spec = msgspec.structs.replace(harness.spec, run_folder=str(folder))
    link = RecordingLink()
    controller = SimulationController(spec=spec, link=link)
    await controller.prepare()
    assert await controller.perform(msgspec.structs.replace(command, transport="in_process")) == Done()
    async with asyncio.timeout(30):
        await link.next(PartEndedReport)
    await controller.close()
    return told(link)


def without_seconds(records):
    return sorted(msgspec.structs.astuple(msgspec.structs.replace(each, seconds=0.0)) for each in records)


@pytest.mark.parametrize("entry", ["far_walks:Walk", "gymnasium:FrozenLake-v1"])
async def test_the_same_seed_gives_the_same_episodes_and_steps_as_in_process(
    phases, tmp_path, monkeypatch, entry
):
    command = phases.command(episodes=30, max_steps=40, entry=entry, agent="far_walks:Reflex")
    for folder in (phases.harness.folder, tmp_path):
        state_file.save(folder / "agents" / f"{command.agents[0]}.state", {"shift": 1})
    ours, _ = await phases.play(command)
    theirs = await in_process(command, phases.harness, tmp_path, monkeypatch)
    (phases.harness.folder / "agents" / f"{command.agents[0]}.state").unlink()
    assert without_seconds(ours) == without_seconds(theirs)
    table = phases.steps(command)
    assert table.equals(trajectories.read(tmp_path, command.name))
    assert table.num_rows == sum(record.steps for record in ours)


async def test_what_raises_is_a_failed_episode_with_its_reason(phases):
    command = phases.command(episodes=4, chunk=4)
    command = with_params(command, fault="raise", bad=seeds(command, 1))
    records, end = await phases.play(command)
    assert outcomes(records) == ["terminated", "failed", "terminated", "terminated"]
    assert (without_place(records[1].reason), records[1].steps) == (
        "environment.step: ValueError: a stone",
        2,
    )
    assert end.failures == 1


async def test_one_that_hangs_costs_its_runner_and_nothing_else(phases, tmp_path):
    begun = tmp_path / "begun"
    command = phases.command(episodes=10, chunk=5, episode_timeout=2.0)
    bad = {"bad": seeds(command, 2), "begun": str(begun), "building": 0.3}
    command = with_params(command, fault="hang", **bad)
    records, end = await phases.play(command)
    assert once_each(records, 10)
    by_index = {record.index: record for record in records}
    assert by_index[2].outcome == "timed_out"
    assert by_index[2].reason == "longer than 2 s, and its runner hangs"
    assert by_index[2].seconds >= 2
    assert Counter(outcomes(records)) == {"terminated": 9, "timed_out": 1}
    [hung] = pids(begun)
    assert not lives(hung)
    assert end.metrics.get("episodes_played_again", 0) == 0
    assert set(phases.steps(command)["episode"].to_pylist()) == set(range(10)) - {2}


async def test_one_that_is_only_late_ends_at_its_next_step_and_its_runner_lives(phases, tmp_path):
    built = tmp_path / "built"
    command = phases.command(episodes=4, chunk=4, episode_timeout=2.0)
    command = with_params(command, fault="endless", bad=seeds(command, 0), built=str(built))
    records, _ = await phases.play(command)
    assert outcomes(records) == ["timed_out", "terminated", "terminated", "terminated"]
    assert records[0].reason == "longer than 2 s"
    assert records[0].steps > 3
    assert all(map(lives, pids(built)))


async def test_one_whose_runner_died_is_played_again_and_counts_once(phases, tmp_path):
    begun, once = tmp_path / "begun", tmp_path / "once"
    command = phases.command(episodes=12, chunk=6, workers=2)
    bad = {"bad": seeds(command, 3), "at": ROWS + 10, "begun": str(begun), "once": str(once)}
    command = with_params(command, fault="die", **bad)
    _, link, playing = phases.begin(command)
    records, end = await phases.end(link, playing)
    assert once_each(records, 12)
    assert set(outcomes(records)) == {"terminated"}
    assert len(set(pids(begun))) == 2
    assert (end.failures, end.metrics["episodes_played_again"]) == (0, 1)
    [lost] = [event for event in link.events if isinstance(event, EpisodeAttemptEnded)]
    assert (lost.index, lost.attempt, lost.outcome, lost.lost) == (3, 1, "crashed", True)
    table = phases.steps(command)
    steps = Counter(table["episode"].to_pylist())
    assert steps == {index: ROWS + 10 if index == 3 else 5 for index in range(12)}
    assert table["step"].to_pylist()[15 : ROWS + 25] == list(range(ROWS + 10))


async def test_one_that_kills_every_runner_is_crashed_and_the_others_are_played(phases, tmp_path):
    begun = tmp_path / "begun"
    command = phases.command(episodes=6, chunk=3, workers=2)
    command = with_params(command, fault="die", bad=seeds(command, 1), begun=str(begun))
    records, end = await phases.play(command)
    assert once_each(records, 6)
    assert Counter(outcomes(records)) == {"terminated": 5, "crashed": 1}
    assert len(set(pids(begun))) == MAX_ATTEMPTS
    assert end.failures == 1
    assert "os._exit(9)" in end.first_failure


async def test_a_runner_that_is_killed_from_outside_costs_no_episode(phases, tmp_path, gate):
    command = phases.command(episodes=40, chunk=10, workers=2)
    bad = {"bad": seeds(command, 5), "once": str(tmp_path / "once"), "gate": gate.path}
    command = with_params(command, fault="hang", **bad)
    simulation, link, playing = phases.begin(command)
    visit = await gate.visit(seconds=60)
    os.kill(visit.pid, signal.SIGKILL)
    records, _ = await phases.end(link, playing)
    assert once_each(records, 40)
    assert set(outcomes(records)) == {"terminated"}
    assert simulation.replays == 1
    assert phases.steps(command)["episode"].to_pylist() == [i for i in range(40) for _ in range(5)]


async def test_what_a_lost_node_had_in_work_is_played_by_a_runner_that_was_made_ready(phases, tmp_path, gate):
    once = tmp_path / "once"
    command = phases.command(episodes=20, chunk=10)
    bad = {"bad": seeds(command, 5), "at": ROWS + 10, "once": str(once), "gate": gate.path}
    command = with_params(command, fault="hang", **bad)
    _, link, playing = phases.begin(command)
    visit = await gate.visit(seconds=60)
    handles = phases.harness.runners._handles.values()
    [process] = [each.process for each in handles if each.process and each.process.hello.pid == visit.pid]
    process.lost = True
    os.kill(visit.pid, signal.SIGKILL)
    records, end = await phases.end(link, playing)
    assert once_each(records, 20)
    assert set(outcomes(records)) == {"terminated"}
    assert end.metrics["episodes_played_again"] == 1
    steps = Counter(phases.steps(command)["episode"].to_pylist())
    assert steps == {index: ROWS + 10 if index == 5 else 5 for index in range(20)}


async def test_a_stop_cancels_what_is_in_work_at_its_next_step_and_keeps_the_runner(phases, gate):
    command = phases.command(episodes=50, chunk=20)
    command = with_params(command, fault="endless", bad=seeds(command, 4), gate=gate.path)
    simulation, link, playing = phases.begin(command)
    visit = await gate.visit(seconds=60)
    simulation.stop(end="stopped")
    records, end = await phases.end(link, playing)
    assert outcomes(records) == ["terminated"] * 4 + ["cancelled"]
    assert (end.end, end.failures) == ("stopped", 0)
    assert lives(visit.pid)
    table = phases.steps(command)
    assert table["outcome"].to_pylist()[-1] == "cancelled"


async def test_a_stop_does_not_wait_for_one_that_hangs(phases, gate):
    command = phases.command(episodes=8, chunk=8)
    command = with_params(command, fault="hang", bad=seeds(command, 2), gate=gate.path)
    simulation, link, playing = phases.begin(command)
    visit = await gate.visit(seconds=60)
    simulation.stop(end="stopped")
    records, end = await phases.end(link, playing)
    assert outcomes(records) == ["terminated", "terminated", "cancelled"]
    assert end.end == "stopped"
    assert not lives(visit.pid)


async def test_a_stop_ends_what_a_pause_keeps_from_the_runners(phases, harness, monkeypatch):
    simulation, link, playing = phases.begin(phases.command(episodes=20, chunk=10))
    submit = harness.engine.submit

    def submit_and_stop(*batch, **more):
        submit(*batch, **more)
        simulation.stop(end="until")

    monkeypatch.setattr(harness.engine, "submit", submit_and_stop)
    harness.engine.pause("user", paused=True)
    async with asyncio.timeout(30):
        records, end = await phases.end(link, playing)
    harness.engine.pause("user", paused=False)
    assert (records, end.end) == ([], "until")


async def test_until_ends_the_phase(phases):
    until = (Until(metric="steps", at_least=5.0, average_over=20),)
    records, end = await phases.play(phases.command(episodes=5000, workers=2, chunk=50, until=until))
    assert end.end == "until"
    assert 20 <= len(records) < 500
    assert len({record.index for record in records}) == len(records)


async def test_what_ended_before_is_not_played_again_and_its_steps_stay(phases):
    command = phases.command(episodes=20, chunk=4)
    before, _ = await phases.play(msgspec.structs.replace(command, episodes=8))
    records, end = await phases.play(with_done(command, before))
    assert sorted(record.index for record in records) == list(range(8, 20))
    assert end.metrics["episodes_ended"] == 20
    assert phases.steps(command)["episode"].to_pylist() == [i for i in range(20) for _ in range(5)]


async def test_conditions_of_the_user_are_asked_in_the_driver(phases, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
    built, log = tmp_path / "built", tmp_path / "asked"
    rule = {"entry": "conditions_world:Every"}
    until = (
        Until(**rule, params={"episodes": 5, "answer": "RESET", "log": str(log)}),
        Until(**rule, params={"episodes": 12, "answer": "STOP_SIMULATION"}),
    )
    command = with_params(phases.command(episodes=500, chunk=1, until=until), built=str(built))
    records, end = await phases.play(command)
    assert outcomes(records).count("terminated") == 12
    assert end.ended_by == "until[1] (conditions_world:Every): STOP_SIMULATION after episode 11"
    assert [int(line.split()[0]) for line in log.read_text().splitlines()] == [*range(12)]
    builds = Counter(
        pids(built)
    )  # at the start and after each of two resets, in each runner that played then
    assert builds.total() >= 3
    assert max(builds.values()) <= 3


async def test_reset_builds_anew_and_pause_holds_the_next_chunk_back(phases, tmp_path):
    built = tmp_path / "built"
    command = with_params(phases.command(episodes=3, chunk=1), built=str(built))
    await phases.play(command, flow="RESET")
    assert len(pids(built)) > 1
    command = phases.command(episodes=30, chunk=10)
    simulation, link, playing = phases.begin(command, flow="PAUSE")
    async with asyncio.timeout(30):
        await link.next(EpisodeEnded, after=9)
    await phases.play(phases.command(episodes=100))
    assert len(link.events) < 30
    link.flow = "CONTINUE"
    simulation.pause(paused=False, ends_flow=True)
    records, _ = await phases.end(link, playing)
    assert once_each(records, 30)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"entry": "far_walks:Nowhere"}, "entry 'far_walks:Nowhere' does not load"),
        ({"params": {"fault": "build"}}, "environment 'far_walks:Walk' does not start: OSError: no ground"),
        (
            {"params": {"fault": "die_in_build"}},
            "the runner that built environment 'field' and its agent exited",
        ),
        ({"agent": "far_walks:Learner", "mode": "train"}, "agent 'walker' learns, and on Ray"),
    ],
)
async def test_what_cannot_be_made_ends_the_phase_with_its_reason(phases, more, reason):
    records, end = await phases.play(phases.command(**more))
    assert records == []
    assert (end.end, end.failures) == ("stopped", 1)
    assert end.first_failure.startswith(reason)


async def test_what_is_not_made_in_time_ends_the_phase_with_its_reason(phases):
    records, end = await phases.play(with_params(phases.command(build_seconds=0.5), building=600.0))
    assert records == []
    assert end.end == "stopped"
    assert (
        end.first_failure == "environment 'field' and its agent were not built within 0.5 s (deadlines.start)"
    )


async def test_an_agent_that_does_not_learn_may_play_in_train_mode(phases):
    records, _ = await phases.play(phases.command(mode="train"))
    assert outcomes(records) == ["terminated"] * 3
    assert not (phases.harness.folder / "agents").exists() or not list(
        (phases.harness.folder / "agents").iterdir()
    )


async def test_a_runner_that_does_not_see_the_folder_gets_the_state_and_sends_its_steps(
    phases, tmp_path, monkeypatch
):
    """It looks where the run's folder is on the machine of the others: here that is another folder."""
    command = phases.command(episodes=20, chunk=5)
    far, near = tmp_path / "far", tmp_path / "near"
    for folder in (far, near):
        state_file.save(folder / "agents/walker.state", {"shift": 1})
    phases.spec = msgspec.structs.replace(phases.spec, run_folder=str(far))
    ours, end = await phases.play(command)
    theirs = await in_process(command, phases.harness, near, monkeypatch)
    assert end.failures == 0
    assert without_seconds(ours) == without_seconds(theirs)
    assert trajectories.read(far, command.name).equals(trajectories.read(near, command.name))
    assert not phases.harness.folder.joinpath("episodes", f"{command.name}.parquet").exists()


async def test_a_runner_that_dies_with_ray_is_no_crash_and_nothing_is_told_of_it(phases, gate):
    async def no_answer():
        return False

    command = phases.command(episodes=8, chunk=8)
    command = with_params(command, fault="hang", bad=seeds(command, 2), gate=gate.path)
    _, link, playing = phases.begin(command, ray_answers=no_answer)
    visit = await gate.visit(seconds=60)
    os.kill(visit.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        await playing
    assert outcomes(told(link)) == ["terminated"] * 2
    assert not [event for event in link.events if isinstance(event, PartEndedReport)]
    [reason] = phases.given_up
    assert reason.startswith("Ray is lost")

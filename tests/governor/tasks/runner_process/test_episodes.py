"""The task that plays episodes, called as its runner calls it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from governor.episodes import trajectories
from governor.episodes.records.episode_file import streams_of
from governor.episodes.records.stream import create
from governor.messages import Made, StartSimulation, decode_simulation, encode
from governor.messages.commands import Wrapper
from governor.tasks.protocol.episodes import (
    READY,
    UNPREPARED,
    WITHOUT_STATE,
    EpisodeChunk,
    decode_episode,
)
from governor.tasks.runner_process import episodes
from tests.support.in_process_commands import WORLDS
from tests.support.nested_spaces import require_recorded
from tests.support.recorded_steps import play as record
from tests.support.recorded_steps import recorder

USER_CODE = Path(__file__).parents[1] / "user_code"


class Runner:
    def __init__(self, folder):
        self.folder = folder
        self.numbers = iter(range(100))
        self.built = folder / "built"
        command = StartSimulation(
            phase=0, name="p", mode="eval", environment="field", agents=("walker",), episodes=9, workers=4, max_steps=None,
            episode_timeout=None, seed=7, transport="ray", made_agents=(Made(entry="far_walks:Reflex"),),
            made_environment=Made(entry="far_walks:Walk", params={"built": str(self.built)}),
        )  # fmt: skip
        self.part = encode(command)

    def chunk(self, *indices, worker=2, **more):
        number = next(self.numbers)
        return EpisodeChunk(number=number, part=self.part, indices=list(indices), worker=worker, **more)

    def call(self, chunk, run):
        context = SimpleNamespace(run="u1", run_id=run, run_folder=self.folder)
        return episodes.play(**chunk.args(), context=context)

    def play(self, *indices, **more):
        chunk = self.chunk(*indices, **more)
        assert self.call(chunk, 0) == READY
        return [decode_episode(self.call(chunk, run + 1))[0] for run in range(len(indices))]


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(USER_CODE))
    monkeypatch.setattr(episodes, "_player", None)
    (tmp_path / "episodes").mkdir()
    (
        tmp_path / "episodes" / "p.jsonl"
    ).touch()  # as the simulation does: so a runner knows that it sees the folder
    yield Runner(tmp_path)
    episodes._player.close()


def test_wrappers_are_built_around_the_environment(runner):
    wrapped = Made(
        entry="far_walks:Walk",
        params={"built": str(runner.built)},
        wrappers=(Wrapper(entry="far_walks:shortened", params={"length": 2}),),
    )
    command = msgspec.structs.replace(decode_simulation(runner.part), made_environment=wrapped)
    runner.part = encode(command)
    [episode] = runner.play(0)
    assert (episode.outcome, episode.steps) == ("terminated", 2)


def test_it_builds_once_for_all_chunks_of_a_phase_and_anew_after_a_reset(runner):
    assert [each.index for each in runner.play(0, 1)] == [0, 1]
    [third] = runner.play(5)
    assert (third.index, third.worker, third.outcome, third.steps) == (5, 2, "terminated", 5)
    assert len(runner.built.read_text().split()) == 1
    runner.play(6, resets=1)
    assert len(runner.built.read_text().split()) == 2
    assert set(trajectories.read(runner.folder, "p")["episode"].to_pylist()) == {0, 1, 5, 6}


@pytest.mark.parametrize("sees_folder", [True, False])
def test_episodes_and_steps_bear_the_worker_of_their_chunk(runner, sees_folder):
    if not sees_folder:
        (runner.folder / "episodes" / "p.jsonl").unlink()
    steps = {}
    for index, worker in enumerate((1, 0, 0, 1)):
        chunk = runner.chunk(index, worker=worker)
        assert runner.call(chunk, 0) == READY
        answer = runner.call(chunk, 1)
        episode, stream = decode_episode(answer if sees_folder else answer.value)
        assert episode.worker == worker
        if not sees_folder:
            steps[stream] = steps.get(stream, b"") + answer.payload
    assert len(runner.built.read_text().split()) == 1
    if sees_folder:
        table = trajectories.read(runner.folder, "p")
        assert table["worker"].to_pylist() == [1] * 5 + [0] * 10 + [1] * 5
    else:
        assert [pa.ipc.open_stream(head).schema.names[:1] for head in steps.values()] == [["observation"]] * 2


def test_values_with_parts_are_played_and_recorded(runner, monkeypatch):
    monkeypatch.syspath_prepend(WORLDS)
    import nested_world

    made = Made(entry="nested_world:Nested"), (Made(entry="nested_world:Player"),)
    command = msgspec.structs.replace(
        decode_simulation(runner.part), made_environment=made[0], made_agents=made[1]
    )
    runner.part = encode(command)
    records = runner.play(0, 1, 2)
    assert [(record.outcome, record.reason) for record in records] == [("terminated", "")] * 3
    require_recorded(nested_world.Nested(), runner.folder, records, phase="p")


def test_what_is_played_again_is_newer_than_what_the_crash_has_left(runner):
    runner.play(0)
    left = recorder(runner.folder, worker=9, phase="p")
    left._stream._create = partial(create, runner.folder, "p", 9, 5)
    record(left, 1, steps=77, outcome="")
    runner.play(1, replays=1)
    assert max(streams_of(runner.folder, "p"))[:2] == (6, 2)
    steps = trajectories.read(runner.folder, "p")["episode"].to_pylist()
    assert (steps.count(0), steps.count(1)) == (5, 5)
    runner.play(2)
    assert len(runner.built.read_text().split()) == 2, "one that is new enough stays"


def test_a_chunk_that_was_begun_elsewhere_is_not_played(runner):
    chunk = runner.chunk(0, 1)
    assert runner.call(chunk, 2) == UNPREPARED
    assert runner.call(chunk, 0) == READY
    assert runner.call(runner.chunk(0, 1), 2) == UNPREPARED


def test_it_asks_for_the_agents_state_where_it_cannot_see_it(runner):
    (runner.folder / "episodes" / "p.jsonl").unlink()
    assert runner.call(runner.chunk(0), 0) == READY, "nothing was learned"
    made, episodes._player = episodes._player, None
    assert runner.call(runner.chunk(0, learned=True), 0) == WITHOUT_STATE
    episodes._player = made

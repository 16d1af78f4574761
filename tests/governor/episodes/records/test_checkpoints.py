"""What is on disk of checkpoints that could not be taken, or were not finished."""

import json
from contextlib import contextmanager

import pytest

from governor.episodes.records.checkpoints import Checkpoints
from governor.errors import ConductorError
from governor.messages import Checkpoint
from tests.support.full_disk import full_beyond


class Team:
    """Two agents of one version; `absent` cannot be asked."""

    def __init__(self, folder, **wanted):
        self.folder = folder
        self.version = ""
        self.absent = ""
        self.later(**wanted)

    def later(self, **wanted):
        self.checkpoints = Checkpoints(
            Checkpoint(**wanted), folder=self.folder, agents=["red", "blue"], copy=self.copy
        )

    async def copy(self, name, path):
        if name == self.absent:
            raise ConductorError(f"{name} hangs")
        path.write_text(f"{name} {self.version}")

    def index(self):
        return json.loads((self.folder / "index.json").read_text())

    def states(self):
        return {path.name: path.read_text() for path in self.folder.iterdir() if path.name != "index.json"}


@contextmanager
def taken_name(path):
    """No file can have that name meanwhile."""
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    yield
    (path / "in the way").rmdir()
    path.rmdir()


async def test_a_best_that_cannot_be_taken_of_all_leaves_the_one_before(tmp_path):
    team = Team(tmp_path / "c", best=True)
    team.version = "1"
    await team.checkpoints.best(10, metric=1.0, sign=1.0)
    team.version, team.absent = "2", "blue"
    with pytest.raises(ConductorError, match="blue hangs"):
        await team.checkpoints.best(20, metric=2.0, sign=1.0)
    assert team.states() == {"red.best.state": "red 1", "blue.best.state": "blue 1"}
    assert team.index()["best"]["episodes"] == 10
    team.absent = ""
    await team.checkpoints.best(30, metric=1.5, sign=1.0)
    assert team.states() == {"red.best.state": "red 2", "blue.best.state": "blue 2"}
    assert team.index()["best"]["episodes"] == 30


async def test_an_index_that_cannot_be_written_leaves_what_was_there(tmp_path):
    team = Team(tmp_path / "c", every=10, keep=1, last=True)
    await team.checkpoints.every(10, metric=None)
    await team.checkpoints.last(10)
    before = team.states()
    team.version = "2"
    with full_beyond(100):
        with pytest.raises(OSError, match="File too large"):
            await team.checkpoints.every(20, metric=None)
        with pytest.raises(OSError, match="File too large"):
            await team.checkpoints.last(20)
    assert team.states() == before
    await team.checkpoints.every(30, metric=None)
    assert [entry["episodes"] for entry in team.index()["every"]] == [30]
    assert {*team.states()} == {"red.30.state", "blue.30.state", "red.last.state", "blue.last.state"}


async def test_a_later_life_finishes_what_was_decided(tmp_path):
    team = Team(tmp_path / "c", best=True)
    team.version = "1"
    await team.checkpoints.best(10, metric=1.0, sign=1.0)
    team.version = "2"
    with taken_name(team.folder / "blue.best.state"), pytest.raises(OSError, match=r"blue\.best\.state"):
        await team.checkpoints.best(20, metric=2.0, sign=1.0)
    assert team.index()["best"]["episodes"] == 10
    team.later(best=True)
    await team.checkpoints.best(30, metric=1.0, sign=1.0)
    assert team.states() == {"red.best.state": "red 2", "blue.best.state": "blue 2"}
    assert team.index()["best"]["episodes"] == 20

"""What an agent has learned: its version, and the file that keeps it."""

import pytest

from governor.episodes import trajectories
from governor.episodes.learned import Learned
from governor.episodes.records import state_file
from tests.support.in_process_commands import inside


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_versions_go_on_behind_those_of_the_state_that_it_was_given(harness, transport):
    path = harness.folder / "given.state"
    state_file.save(path, {"learned": 500}, weight_version=500)
    command = inside(agent="rules_world:Late", agent_state=str(path))
    for life in (1, 2):
        if transport == "conductors":
            command = {}
            if life == 1:
                await harness.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
            else:
                await harness.conductors["agent.walker"].close()
            settings = {"entry": "rules_world:Late", "params": {}, "state": str(path)}
            await harness.start("agent.walker", incarnation=life, **settings)
        await harness.play(episodes=1, phase=life, name=f"life {life}", incarnation=life, **command)
    versions = [
        version
        for life in (1, 2)
        for version in trajectories.read(harness.folder / "run", f"life {life}")["weight_version"].to_pylist()
    ]
    assert versions == [*range(500, 510)]


class Knows:
    def learn(self, transition): ...

    def state_dict(self):
        return {"at": (1, 2)}


def test_the_first_state_is_read_back_before_it_counts(tmp_path, monkeypatch):
    path = tmp_path / "a.state"
    learned = Learned(Knows(), path)
    with monkeypatch.context() as patch:
        patch.delitem(state_file._MADE, state_file.TUPLE)
        with pytest.raises(TypeError, match="cannot be read back"):
            learned.episode_ended()
        assert not path.exists()
    learned.save()
    assert state_file.load(path) == {"at": (1, 2)}
    monkeypatch.setattr(state_file, "loads", lambda _: pytest.fail("once is enough"))
    learned.episode_ended()
    learned.save()


@pytest.mark.parametrize("how", ["conductors", "in_process", "max_staleness"])
async def test_an_agent_of_torch_continues_after_a_restart(harness, how):
    torch = pytest.importorskip("torch")
    command = {"in_process": inside(agent="torch_world:Net"), "max_staleness": {"max_staleness": 2}}.get(
        how, {}
    )
    before = None
    for life in (1, 2):
        if how != "in_process":
            if life == 1:
                await harness.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
            else:
                await harness.conductors["agent.walker"].close()
            await harness.start("agent.walker", entry="torch_world:Net", params={}, incarnation=life)
        episodes, _ = await harness.play(
            episodes=2, phase=life, name=f"life {life}", incarnation=life, **command
        )
        assert [episode.reason for episode in episodes] == [""] * 2
        state = harness.state()
        assert isinstance(state["net"]["weight"], torch.Tensor)
        steps = int(state["optimizer"]["state"][0]["step"])
        assert steps == life * 10
        assert before is None or not before.equal(state["net"]["weight"])
        before = state["net"]["weight"]

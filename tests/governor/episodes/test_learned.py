"""The version of the weights of an agent that begins from another one's state."""

import pytest
from in_process_commands import inside

from governor.episodes import trajectories
from governor.episodes.records import state_file


@pytest.mark.parametrize("transport", ["conductors", "in_process"])
async def test_versions_go_on_behind_those_of_the_state_that_it_was_given(house, transport):
    path = house.folder / "given.state"
    state_file.save(path, {"learned": 500}, weight_version=500)
    command = inside(agent="rules_world:Late", agent_state=str(path))
    for life in (1, 2):
        if transport == "conductors":
            command = {}
            if life == 1:
                await house.start("environment.lake", entry="walk_world:Walk", params={}, pool=1)
            else:
                await house.conductors["agent.walker"].close()
            settings = {"entry": "rules_world:Late", "params": {}, "state": str(path)}
            await house.start("agent.walker", incarnation=life, **settings)
        await house.play(episodes=1, phase=life, name=f"life {life}", incarnation=life, **command)
    versions = [
        version
        for life in (1, 2)
        for version in trajectories.read(house.folder / "run", f"life {life}")["weight_version"].to_pylist()
    ]
    assert versions == [*range(500, 510)]

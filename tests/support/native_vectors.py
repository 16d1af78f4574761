"""Commands of vectors whose environments step together, and what is on record of their episodes."""

import msgspec

from governor.episodes import trajectories
from tests.support.in_process_commands import vector


def native(size=4, *, mode="NextStep", agent="Stands", stepped="native", entry="vector_world:Walks", **more):
    if entry.startswith(("vector_world:Walks", "vector_world:Reports")):
        more["mode"] = mode
    command = vector(size, entry=entry, agent=f"vector_world:{agent}", **more)
    made = msgspec.structs.replace(command["made_environment"], vector_mode=stepped)
    return {**command, "made_environment": made, "vector": size}


async def with_conductors(harness, command, *, pool=1):
    """What this command says for a phase through conductors, which are started."""
    made, [agent] = command["made_environment"], command["made_agents"]
    settings = {"num_envs": made.vector, "mode": made.vector_mode}
    await harness.start("environment.lake", entry=made.entry, params=made.params, vector=settings, pool=pool)
    await harness.start("agent.walker", entry=agent.entry, params=agent.params)
    inside = ("transport", "made_environment", "made_agents")
    rest = {name: value for name, value in command.items() if name not in inside}
    return rest | {"vector_mode": made.vector_mode}


def steps_of(harness, phase="train"):
    return trajectories.read(harness.folder / "run", phase).to_pandas()


def require_whole(steps, records):
    """Each episode is on record from its first observation to its last step, once."""
    for record in records:
        mine = steps[steps.episode == record.index]
        if not record.steps:
            assert mine.empty
            continue
        assert [int(place) for place, _ in mine.observation] == list(range(record.steps))
        assert mine.step.tolist() == list(range(record.steps))
        assert len({slot for _, slot in mine.observation}) == 1
        assert mine.reward.sum() == record.value
        assert set(mine.outcome) == {record.outcome}
    assert len(steps) == sum(record.steps for record in records)

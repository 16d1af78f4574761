"""Commands whose phase is played in process, and the results of their episodes."""

from pathlib import Path

import msgspec

from governor.messages import EpisodeEnded, EpisodeRecord, Made

WORLDS = str(Path(__file__).parents[1] / "governor/episodes/worlds")
"""Folder of the user code that these and the tests of episodes name."""


def inside(
    *,
    entry="walk_world:Walk",
    agent="walk_world:Agent",
    agent_params=None,
    agent_state=None,
    wrappers=(),
    **params,
):
    """The fields of a command whose phase is played in process."""
    return {
        "transport": "in_process",
        "made_environment": Made(entry=entry, params=params, wrappers=tuple(wrappers)),
        "made_agents": (Made(entry=agent, params=agent_params or {}, state=agent_state),),
    }


def vector(size, **more):
    """As `inside`, with `size` sub-environments for each worker."""
    command = inside(**more)
    return {**command, "made_environment": msgspec.structs.replace(command["made_environment"], vector=size)}


BOTH = ("romeo", "juliet")
PLAYERS = {"red": "romeo", "blue": "juliet"}


def parallel(
    *, env="Pair", agents=BOTH, agent="Always", players=PLAYERS, params=None, vector=1, **env_params
):
    """As `inside`, for an environment of several players; `params` are those of each agent by its name."""
    params = params or {}
    entry = env if ":" in env else f"parallel_world:{env}"
    return {
        "transport": "in_process",
        "agents": tuple(agents),
        "players": players,
        "made_environment": Made(entry=entry, params=env_params, vector=vector),
        "made_agents": tuple(
            Made(entry=agent if ":" in agent else f"parallel_world:{agent}", params=params.get(name, {}))
            for name in agents
        ),
    }


def turns(*, env="Nim", agent="turns_world:Legal", agents=("one",), players=None, **more):
    """Likewise, one whose players take turns."""
    return parallel(env=f"turns_world:{env}", agent=agent, agents=agents, players=players or {}, **more)


def outcomes(records):
    return [record.outcome for record in records]


def told(records):
    """The results of episodes by index, without worker and duration."""
    return sorted((r.index, r.seed, r.outcome, r.value, r.steps, r.reason) for r in records)


def episodes(link):
    return [event.episode for event in link.events if isinstance(event, EpisodeEnded)]


def noted_before(instance, *, phase="train"):
    """Writes episodes of an earlier process: their file is longer than that of a few other episodes."""
    done = tuple(
        EpisodeRecord(index=index, worker=0, seed=0, outcome="terminated", value=5.0, steps=5, seconds=0.1)
        for index in range(100)
    )
    path = instance.folder / f"run/episodes/{phase}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f'{{"index": {record.index}, "pad": "{"x" * 200}"}}\n' for record in done))
    return done

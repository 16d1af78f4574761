"""Commands whose phase plays in process, and what came of their episodes."""

import msgspec

from governor.messages import EpisodeEnded, Made


def inside(
    *, entry="walk_world:Walk", agent="walk_world:Agent", agent_params=None, agent_state=None, **params
):
    """What a command says more when its phase plays in process."""
    return {
        "transport": "in_process",
        "made_environment": Made(entry=entry, params=params),
        "made_agents": (Made(entry=agent, params=agent_params or {}, state=agent_state),),
    }


def vector(size, **more):
    """The same with `size` sub-environments for each worker."""
    command = inside(**more)
    return {**command, "made_environment": msgspec.structs.replace(command["made_environment"], vector=size)}


def outcomes(records):
    return [record.outcome for record in records]


def episodes(link):
    return [event.episode for event in link.events if isinstance(event, EpisodeEnded)]

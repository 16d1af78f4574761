"""Phases that a language model plays, in a `Instance`."""

import pandas as pd

from governor.messages import Made

SECONDS = 60


def talking(url, *, entry, environment=None, **params):
    """The fields of a command for a phase that a language model plays."""
    return {
        "transport": "in_process",
        "made_environment": Made(entry=entry, params=environment or {}),
        "made_agents": (Made(entry="openai:m", params={"base_url": url, "retries": 0, **params}),),
    }


def steps_of(instance):
    return pd.read_parquet(instance.folder / "run/episodes/train.parquet")


async def play(instance, world, name="walk", **more):
    """Plays a phase in the world's environments of this name."""
    environment = {"name": name, **more.pop("environment", {})}
    agent = more.pop("agent", {})
    return await instance.play(
        seconds=SECONDS, **talking(world.llm, entry=world.url, environment=environment, **agent), **more
    )

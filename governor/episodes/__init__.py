"""Episodes: one environment from reset to terminated or truncated, and the agents that act and learn in it.

This package imports nothing heavy, so that an agent's module may use `from governor.episodes import Transition`: a name
in `_HOMES` is imported on first access.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from governor.episodes.transition import Episode, Transition

if TYPE_CHECKING:
    from governor.episodes.agents import Agent
    from governor.episodes.rollouts import Rollout
    from governor.episodes.text.actor_pool import ActorHandle, ActorPool, http_endpoints, process_endpoints
    from governor.episodes.text.base_urls import (
        BaseURLProvider,
        SessionSuffixBaseURLProvider,
        StaticBaseURLProvider,
    )
    from governor.episodes.text.episode_handler import EpisodeHandler, NullEpisodeHandler
    from governor.episodes.text.http_client import HttpClient
    from governor.episodes.text.interactor import Interactor
    from governor.episodes.text.llm import LLM
    from governor.episodes.text.sessions import DataManager, SessionContext

_HOMES: Final = {
    "ActorHandle": "text.actor_pool",
    "ActorPool": "text.actor_pool",
    "Agent": "agents",
    "BaseURLProvider": "text.base_urls",
    "DataManager": "text.sessions",
    "EpisodeHandler": "text.episode_handler",
    "HttpClient": "text.http_client",
    "Interactor": "text.interactor",
    "LLM": "text.llm",
    "NullEpisodeHandler": "text.episode_handler",
    "Rollout": "rollouts",
    "SessionContext": "text.sessions",
    "SessionSuffixBaseURLProvider": "text.base_urls",
    "StaticBaseURLProvider": "text.base_urls",
    "http_endpoints": "text.actor_pool",
    "process_endpoints": "text.actor_pool",
}

__all__ = [
    "LLM",
    "ActorHandle",
    "ActorPool",
    "Agent",
    "BaseURLProvider",
    "DataManager",
    "Episode",
    "EpisodeHandler",
    "HttpClient",
    "Interactor",
    "NullEpisodeHandler",
    "Rollout",
    "SessionContext",
    "SessionSuffixBaseURLProvider",
    "StaticBaseURLProvider",
    "Transition",
    "http_endpoints",
    "process_endpoints",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

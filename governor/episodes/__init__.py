"""Episodes: one environment from reset to terminated or truncated, and what learns from it.

This package imports nothing heavy, so that an agent's module may say `from governor.episodes import Transition`: what is
in `_HOMES` is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from governor.episodes.transition import Transition

if TYPE_CHECKING:
    from governor.episodes.actor_pool import ActorHandle, ActorPool
    from governor.episodes.episode_handler import EpisodeHandler
    from governor.episodes.interactor import Interactor
    from governor.episodes.llm import SessionSuffixBaseURLProvider, StaticBaseURLProvider
    from governor.episodes.sessions import DataManager

_HOMES: Final = {
    "ActorHandle": "actor_pool",
    "ActorPool": "actor_pool",
    "DataManager": "sessions",
    "EpisodeHandler": "episode_handler",
    "Interactor": "interactor",
    "SessionSuffixBaseURLProvider": "llm",
    "StaticBaseURLProvider": "llm",
}

__all__ = [
    "ActorHandle",
    "ActorPool",
    "DataManager",
    "EpisodeHandler",
    "Interactor",
    "SessionSuffixBaseURLProvider",
    "StaticBaseURLProvider",
    "Transition",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

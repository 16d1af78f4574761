"""Episodes: one environment from reset to terminated or truncated, and what learns from it.

This package imports nothing heavy, so that an agent's module may say `from governor.episodes import Transition`.
"""

from __future__ import annotations

from governor.episodes.transition import Transition

__all__ = ["Transition"]

"""What the agents of a worker in process are told of an episode beside its steps: that it begins, and how it has ended.

An error of `begin`, or of `end` of a training episode that was played to its end, is the fault of the episode. Any other `end` has no
effect on it: an error is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from governor import logs
from governor.episodes.local.execution_context import BEGIN, END
from governor.episodes.rules.evaluation import number_of
from governor.episodes.transition import Episode
from governor.failures import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from governor.episodes.local.local_agent import Calls
    from governor.episodes.local.stepping import LocalSlot
    from governor.messages import EpisodeOutcome

log = logs.get_logger()


def begin(slot: LocalSlot, agents: Mapping[str, Calls], *, seed: int, workers: int, explore: bool) -> None:
    """Of an episode whose first observation is there; `agents` by name. Raises what they raise."""
    context = slot.context
    command = context.command
    episode = Episode(
        number=context.index,
        phase=command.name,
        seed=seed,
        worker=context.number,
        workers=workers,
        explore=explore,
        evaluation=number_of(context.index, command),
    )
    slot.begun = episode, agents
    for name, calls in agents.items():
        if calls.begin is not None:
            context.agent = name  # before `where`: the watch reads the agent of `where`
            context.where = BEGIN
            calls.begin(episode)


def end(slot: LocalSlot, outcome: EpisodeOutcome) -> None:
    """Once for each `begin`. Raises what the agents raise."""
    begun, slot.begun = slot.begun, None
    if begun is None:
        return
    context, (episode, agents) = slot.context, begun
    over = msgspec.structs.replace(
        episode, outcome=outcome, value=context.value, steps=context.steps, values=dict(context.values)
    )
    for name, calls in agents.items():
        if calls.end is not None:
            context.agent = name  # as above
            context.where = END
            calls.end(over)


def end_without_effect(slot: LocalSlot, outcome: EpisodeOutcome) -> None:
    """As `end`, of an episode that no agent learns to its end."""
    try:
        end(slot, outcome)
    except BaseException as error:  # noqa: BLE001  # user code, which may also exit
        log.warning("agent.end_failed", episode=slot.context.index, reason=one_line(error))

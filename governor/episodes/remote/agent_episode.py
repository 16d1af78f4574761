"""An episode, as the agent's process knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from governor.episodes.entries import Abandoned
from governor.episodes.metrics import Reported
from governor.episodes.transition import NO_EXTRAS, NO_INFO, Transition
from governor.failures import Reason, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from governor.episodes.transition import Episode


@dataclass(slots=True, eq=False)
class AgentEpisode:
    """An episode that the agent plays for a session, in one of its slots; without a slot, other work for that session.

    `explore` and `learn` hold for all of its steps, `observation`, `action` and `extras` are the last ones. `fault` is (where, reason)
    once a call for it has failed. `number` is its number in the phase, negative if unknown; `evaluation` as of `wire.ResetFrame`.
    `reported`: since the last answer. `told` is what the agent knows of it at its begin; since then it had `steps`, and the return
    `value`. `mask` is the action mask of `observation`. `player`: of several players, whose turns these are; a fault is that of the
    `whole` too. `prefix` is put before the names of its metrics.
    """

    session: bytes
    slot: int | None = None
    number: int = -1
    observation: Any = None
    explore: bool = False
    learn: bool = False
    action: Any = None
    fault: tuple[str, Reason] | None = None
    reported: Reported = field(default_factory=Reported)
    evaluation: int = 0
    extras: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRAS)
    told: Episode | None = None
    steps: int = 0
    value: float = 0.0
    mask: Any = None
    player: str = ""
    whole: AgentEpisode | None = None
    prefix: str = ""

    def attempt(self, where: str, call: Callable[..., object], *args: Any) -> None:
        """Runs user code: whatever it raises is this episode's fault."""
        try:
            call(*args)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # as above
            self.fail(where, error)

    def fail(self, where: str, error: BaseException) -> None:
        self.fault = f"{where} of {self.player}" if self.player else where, reason_of(error)
        if self.whole is not None:
            self.whole.fault = self.whole.fault or self.fault

    def stepped(self, observation: Any, reward: float, *, ends: tuple[bool, bool], info: Any) -> Transition:
        """Its last step, which led to `observation`; `ends`: whether it is terminated and truncated."""
        told = self.told
        return Transition(
            observation=self.observation,
            action=self.action,
            reward=reward,
            next_observation=observation,
            terminated=ends[0],
            truncated=ends[1],
            episode=self.number,
            worker=0 if told is None else told.worker,
            step=self.steps - 1,
            seed=-1 if told is None else told.seed,
            player=self.player,
            info=NO_INFO if info is None else info,
            extras=self.extras,
        )

    def ended(
        self, outcome: str, value: float, steps: int, values: Mapping[str, float] = NO_EXTRAS
    ) -> Episode | None:
        """As the agent is told of its end; None if it does not know the episode."""
        if self.told is None:
            return None
        return msgspec.structs.replace(self.told, outcome=outcome, value=value, steps=steps, values=values)

"""What is done between two stages of a phase: a checkpoint is taken, and the next stage begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from governor.episodes.rules.evaluation import Stage
    from governor.episodes.rules.phase_rules import PhaseRules


class Ask(Protocol):
    """Runs a coroutine in the event loop, for any thread."""

    def __call__(self, question: Coroutine[Any, Any, None], *, stoppable: bool = True) -> Future[None]: ...


class StageEnds:
    """`condition` is that of the workers, who wait for the next stage; `failed` gets the reason of a checkpoint that can't be taken."""

    def __init__(
        self, rules: PhaseRules, *, condition: threading.Condition, ask: Ask, failed: Callable[[str], None]
    ) -> None:
        self._rules = rules
        self._condition = condition
        self._ask = ask
        self._failed = failed
        self._under_way: Future[None] | None = None
        self._previous: Literal["due", "under way", "settled"] = "due"

    def holds(self) -> bool:
        """Whether no episode may begin yet, because of a stage whose end an earlier process did not finish: that is made up for when the
        first worker asks. Its agent has learned again what is on record then. With the lock.
        """
        if self._previous == "due":
            self._previous = "under way" if self._rules.is_behind else "settled"
            if self._rules.is_behind:
                self._under_way = self._ask(self._settle_previous(), stoppable=False)
        return self._previous == "under way"

    def end(self) -> None:
        """All episodes of the current stage have ended. With the lock."""
        stage = self._rules.schedule.stage
        if self._rules.keeps and stage is not None:
            self._under_way = self._ask(self._settle_and_go_on(stage), stoppable=False)
            return
        self._rules.schedule.advance()
        self._condition.notify_all()

    async def _settle_and_go_on(self, stage: Stage) -> None:
        await self._settle(self._rules.settle(stage))
        with self._condition:
            self._rules.schedule.advance()
            self._under_way = None
            self._condition.notify_all()

    async def _settle_previous(self) -> None:
        await self._settle(self._rules.settle_previous())
        with self._condition:
            self._previous = "settled"
            self._under_way = None
            self._condition.notify_all()

    async def settle_end(self, *, abandoned: bool) -> None:
        """At the end of the phase, unless it is `abandoned`."""
        if self._under_way is not None:
            await asyncio.wrap_future(self._under_way)
        if not abandoned:
            if self._previous == "due":  # no worker was needed
                await self._settle_previous()
            await self._settle(self._rules.settle_end(self._rules.figures.trained))

    async def _settle(self, settling: Coroutine[Any, Any, str]) -> None:
        reason = await settling
        if reason:
            self._failed(reason)

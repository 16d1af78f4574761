"""The objects of a user's conditions, as they are built and asked: in the thread of `UserConditions`, and by `governor try`."""

from __future__ import annotations

import math
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from governor.episodes.context import Context, with_context
from governor.episodes.entries import load
from governor.episodes.rules.conditions import METHODS, STRENGTH
from governor.episodes.rules.statistics import PhaseStatistics, summarize
from governor.errors import ConductorError

if TYPE_CHECKING:
    from pathlib import Path

    from governor.messages import EpisodeRecord, FlowControl, StartSimulation, Until


class Answer(NamedTuple):
    """Of all conditions about one episode: the strongest one, and the condition that gave it."""

    flow: FlowControl
    by: str = ""


class ConditionObjects:
    """Those of one phase. For one thread; any other may read what it is in."""

    def __init__(self, command: StartSimulation, *, run_id: str, run_folder: Path) -> None:
        self.asked_about = 0
        """Episodes."""
        self.since = math.inf
        """Since when, in monotonic seconds, it is in user code; infinite when it is not."""
        self._command = command
        self._run_id = run_id
        self._run_folder = run_folder
        self._conditions: list[tuple[str, Any]] = []
        self._statistics: PhaseStatistics | None = None
        self._now = ("", -1)
        """The method, and the episode, that it is in."""

    @property
    def index(self) -> int:
        """Of the episode that a condition is being asked about; negative for none."""
        return self._now[1]

    @property
    def place(self) -> str:
        """Whose code it is in, or was when that raised."""
        where, index = self._now
        return where if index < 0 else f"{where} of episode {index}"

    def build(self) -> None:
        """Raises what user code raises, and ConductorError for what does not load or has no method of a condition."""
        for number, rule in enumerate(self._command.until):
            if rule.entry is not None:
                self._enter(f"until[{number}] ({rule.entry})")
                self._conditions.append((f"until[{number}] ({rule.entry})", self._made(rule, rule.entry)))
                self._leave()
        if any(hasattr(condition, METHODS[1]) for _, condition in self._conditions):
            self._statistics = PhaseStatistics(msgspec.structs.replace(self._command, until=()))

    def ask(self, record: EpisodeRecord) -> Answer:
        """Raises what user code raises, and ValueError for an answer that is none."""
        self.asked_about += 1
        strongest = Answer("CONTINUE")
        record = msgspec.structs.replace(
            record, values=dict(record.values), metrics=dict(record.metrics), traceback=""
        )
        metrics = self._metrics(record)
        for name, condition in self._conditions:
            for method, about in zip(METHODS, (record, metrics), strict=True):
                if (call := getattr(condition, method, None)) is None:
                    continue
                self._enter(f"{name}.{method}", record.index)
                flow = flow_of(call(about))
                self._leave()
                if STRENGTH[flow] > STRENGTH[strongest.flow]:
                    strongest = Answer(flow, f"{name}: {flow} after episode {record.index}")
        return strongest

    def _made(self, rule: Until, entry: str) -> Any:
        factory = load(entry)
        context = Context(run_id=self._run_id, run_folder=self._run_folder, name=f"condition.{entry}")
        condition = factory(**with_context(factory, rule.params, context))
        if not any(callable(getattr(condition, method, None)) for method in METHODS):
            raise ConductorError(f"has neither {' nor '.join(METHODS)}")
        return condition

    def _metrics(self, record: EpisodeRecord) -> dict[str, float]:
        if self._statistics is None:
            return {}
        self._statistics.add(record)
        return summarize(self._statistics.figures) | self._statistics.evaluations.metrics

    def _enter(self, where: str, index: int = -1) -> None:
        self._now, self.since = (where, index), monotonic()

    def _leave(self) -> None:
        self._now, self.since = ("", -1), math.inf


def flow_of(answer: object) -> FlowControl:
    """The flow control that a condition has answered with: its name, an enum's member of that name, None for CONTINUE, or a pair
    whose first item is one of these. Raises ValueError.
    """
    found = answer[0] if isinstance(answer, tuple) and len(answer) == 2 else answer
    if found is None:
        return "CONTINUE"
    name = found.name if isinstance(found, Enum) else found
    for flow in STRENGTH:
        if flow == name:
            return flow
    raise ValueError(f"answered {_shown(answer)}, which is none of {', '.join(STRENGTH)}")


def _shown(answer: object) -> str:
    text = repr(answer) if isinstance(answer, str | int | float) else f"a {type(answer).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."

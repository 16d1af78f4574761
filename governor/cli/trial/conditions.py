"""The conditions of the user's own in a phase whose episode is tried: built before it, and asked about it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from governor.cli.trial.choice import UID
from governor.cli.trial.output import say
from governor.episodes.rules.condition_objects import ConditionObjects
from governor.episodes.rules.evaluation import number_of
from governor.errors import ConductorError

if TYPE_CHECKING:
    from pathlib import Path

    from governor.messages import EpisodeRecord, StartSimulation


class TriedConditions:
    """`place` is whose code has raised."""

    def __init__(self, command: StartSimulation, folder: Path) -> None:
        self._command = command
        self._objects = ConditionObjects(command, run_id=UID, run_folder=folder)
        self._has_any = any(rule.entry is not None for rule in command.until)

    @property
    def place(self) -> str:
        return self._objects.place

    def build(self) -> None:
        """Raises what user code raises, and ConductorError for what does not load."""
        try:
            self._objects.build()
        except ConductorError as error:
            raise ConductorError(f"{self.place}: {error.reason}") from error.__cause__

    def show_answer(self, record: EpisodeRecord) -> None:
        """Raises what user code raises, and ValueError for an answer that is none."""
        if self._has_any:
            evaluation = number_of(record.index, self._command)
            answer = self._objects.ask(msgspec.structs.replace(record, evaluation=evaluation))
            say(f"conditions: {answer.by or answer.flow}")

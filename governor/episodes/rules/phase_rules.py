"""All rules of a phase, for its simulation: which episode is next, when the phase ends, which checkpoints are taken.

Not thread-safe: the caller holds a lock. The coroutines take no lock, because no episode of the next stage begins before
they have returned.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec

from governor import logs
from governor.episodes.metrics import NONFINITE
from governor.episodes.records import state_file
from governor.episodes.records.checkpoints import Checkpoints, folder_of
from governor.episodes.rules import evaluation
from governor.episodes.rules.conditions import STRENGTH, Goal, wall_clock
from governor.episodes.rules.failures import Retries
from governor.episodes.rules.statistics import PhaseStatistics, bounds_of, summarize
from governor.errors import ConductorError
from governor.failures import reason_of, traceback_of
from governor.messages import PartEndedReport
from transport.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from governor.episodes.records.checkpoints import Copy
    from governor.episodes.rules.evaluation import Stage
    from governor.episodes.rules.failures import BoundsLeft
    from governor.messages import EpisodeRecord, FlowControl, StartSimulation

log = logs.get_logger()


class PhaseRules:
    """`schedule` assigns episodes; `figures` are those of all that have ended. `seconds_left` is the remaining wall-clock time in
    seconds, None without a limit.
    """

    def __init__(self, command: StartSimulation) -> None:
        self._command = command
        self._statistics = PhaseStatistics(command, deepcopy(command.done))
        self.figures = self._statistics.figures
        self._evaluation_results = self._statistics.evaluations
        self._expected_goal = Goal(command.until, deepcopy(self.figures.goal))
        self.asks_user = any(rule.entry is not None for rule in command.until)
        """Whether the phase has conditions of the user, which nobody knows before they are asked."""
        self._checkpoints: Checkpoints | None = None
        known = self.figures.ended
        planned = evaluation.stages(command.episodes, command.evaluate, command.checkpoint, known=known)
        self.retries = Retries({} if command.failures is None else command.failures.retries, command.attempts)
        self.schedule = evaluation.EpisodeSchedule(planned, known=known, repeats=bool(self.retries))
        self._expected_failures = bounds_of(command, self.figures)
        self.initial_flow = self._statistics.flow
        """The flow control that follows from the episodes of an earlier process."""
        limit, busiest = wall_clock(command.until), max(self.figures.seconds.values(), default=0.0)
        self.seconds_left = None if limit is None else max(0.0, limit - busiest)

    def marked(self, record: EpisodeRecord) -> EpisodeRecord:
        number = evaluation.number_of(record.index, self._command)
        return msgspec.structs.replace(record, evaluation=number) if number else record

    def trains(self, index: int) -> bool:
        """Whether the agent explores and learns in this episode."""
        return self._command.mode == "train" and index < self._command.episodes

    def may_end(self, record: EpisodeRecord) -> bool:
        """Whether the phase may end with an episode that is not stored yet, if all are stored with their outcomes: called once for
        each. `until` and the bounds of failures decide here; an evaluation ends with its stage, for which all workers wait.
        """
        return (
            self._expected_failures.add(record.outcome)
            or self._expected_goal.episode_flow_control(record) != "CONTINUE"
        )

    def ended(self, record: EpisodeRecord) -> FlowControl:
        """The flow control that follows from a stored episode."""
        return self._statistics.add(record)

    def would_end(self, records: Sequence[EpisodeRecord]) -> bool:
        """Whether one of these training episodes may stop the phase if they ended now."""
        return self.asks_user or self._expected_goal.would_be(records) != "CONTINUE"

    @property
    def exceeded(self) -> str:
        """The bound of failures that the stored episodes have passed; "" for none."""
        return self._statistics.bounds.exceeded

    @property
    def bounds_left(self) -> BoundsLeft | None:
        return self._statistics.bounds.left

    def report_of_end(
        self, *, end: str, ended_by: str, fault: str, metrics: dict[str, float]
    ) -> PartEndedReport:
        """Of the part; `fault` is one of its own."""
        figures, exceeded = self.figures, self.exceeded
        return PartEndedReport(
            phase=self._command.phase,
            part="simulation",
            end=end,
            ended_by=ended_by,
            failures=figures.bad + bool(fault),
            first_failure=str(fault) or figures.first_bad,
            metrics=metrics,
            fault=str(fault),
            traceback=traceback_of(fault),
            exceeded=exceeded,
            tolerated=bool(figures.bad) and not fault and not exceeded,
        )

    @property
    def ended_by(self) -> str:
        """The built-in condition that held first."""
        return self._statistics.ended_by

    def metrics_at_end(self, steps_per_second: float | None) -> dict[str, float]:
        return summarize(self.figures, steps_per_second=steps_per_second) | self._evaluation_results.metrics

    def only_restores(self) -> bool:
        """Whether all episodes had ended when an earlier process of the training died, and the saved state of its agent may lack something
        of them. Blocks.
        """
        command, ended = self._command, self._command.done.ended
        stops = STRENGTH[self.initial_flow] >= STRENGTH["STOP_SIMULATION"] or self.schedule.stage is None
        if not (stops and ended and command.mode == "train" and command.workers * command.vector == 1):
            return False
        try:
            saved = state_file.learned(self._run_folder / "agents" / f"{command.agents[0]}.state")
        except ConductorError:  # the process of the agent will say so
            return False
        if not saved or saved["phase"] != command.name:
            return True
        return not saved["over"] and bool(saved["ended"] != ended.bounds)

    # -- checkpoints between two stages -----------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        return self._checkpoints is not None

    def open(self, run_folder: Path, copy: Copy | None) -> None:
        """`copy` copies the state of an agent, if the phase has checkpoints."""
        command, self._run_folder = self._command, run_folder
        if command.checkpoint is not None and copy is not None:
            self._checkpoints = Checkpoints(
                command.checkpoint,
                folder=folder_of(run_folder, command.name),
                agents=command.agents,
                copy=copy,
            )

    async def settle(self, stage: Stage) -> str:
        """Takes the checkpoints at the end of a stage; returns the reason of a failure in one line, or ""."""
        if self._checkpoints is None:
            return ""
        return await self._tried(self._keep(stage, self._checkpoints))

    def _keys_without_values(self) -> list[str]:
        """Keys of `info` that the run file names and no episode had: misspelled, most of the time."""
        found, wanted = self.figures.metrics, self._command.info
        if isinstance(wanted, str) or not self.figures.returns.count:
            return []
        names = {name.removesuffix(NONFINITE) for name in found}
        return [key for key in wanted if not any(name == key or name.endswith(f".{key}") for name in names)]

    @property
    def is_behind(self) -> bool:
        """Whether there is a stage for `settle_previous`."""
        return self._checkpoints is not None and self.schedule.behind is not None

    async def settle_previous(self) -> str:
        """As `settle`, for a stage whose end an earlier process did not finish."""
        behind = self.schedule.behind
        return "" if behind is None else await self.settle(behind)

    async def settle_end(self, episodes: int) -> str:
        """As `settle`, at the end of the phase, in which so many training `episodes` have ended."""
        if missing := self._keys_without_values():
            log.warning("info.keys_missing", phase=self._command.name, keys=missing)
        return "" if self._checkpoints is None else await self._tried(self._checkpoints.last(episodes))

    async def _keep(self, stage: Stage, checkpoints: Checkpoints) -> None:
        if stage.evaluation:
            value = self._evaluation_results.means.get(stage.evaluation)
            await checkpoints.best(stage.trained, metric=value, sign=self._evaluation_results.sign)
        if stage.keep:
            tally = self.figures.stages.get(stage.indexes.start)
            value = tally.values.mean if tally is not None and tally.values.count else None
            await checkpoints.every(stage.trained, metric=value)
            if self._command.evaluate is None:
                sign = (
                    -1.0
                    if self._command.checkpoint is not None and self._command.checkpoint.direction == "min"
                    else 1.0
                )
                await checkpoints.best(stage.trained, metric=value, sign=sign)

    async def _tried(self, keeping: Coroutine[Any, Any, None]) -> str:
        try:
            await keeping
        except (ConductorError, RequestError, OSError) as error:
            reason = reason_of(error)
            log.warning("checkpoint.not_taken", phase=self._command.name, reason=reason)
            return reason.within("cannot take a checkpoint")
        return ""

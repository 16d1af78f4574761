"""Makes the document of runs from a source. Each section is made by itself: one that can't be read is missing, with its reason, and the
others are there.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from governor.errors import GovernorError, Unreachable
from governor.journal.failures import Deaths
from governor.messages import FailureGroup, ReadOutput
from governor.messages.curves import EVALUATION, QUANTILES
from governor.report import timeline
from governor.report.compare import compare
from governor.report.document import (
    ConductorUsage,
    CurveData,
    Document,
    Failure,
    LogLine,
    RunDocument,
    Summary,
    Usage,
    Windows,
)
from governor.report.tables import PhaseEpisodes, episode_table, room_of_a_phase, task_table
from governor.runs.record import environment, usage
from governor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from governor.messages import RunEvent, RunResult
    from governor.messages.curves import Curve
    from governor.report.document import EpisodeSteps, Session, Table
    from governor.report.source import Source

MOST_METRICS: Final = 60
"""Metrics of a run whose curves are drawn."""
MOST_CAUSES: Final = 40
CONDUCTOR_KINDS: Final = ("conductor.failed", "conductor.exited")
LOG_CAUSES: Final = 10
"""Causes that are shown with lines of their logs: for each all the run's output is looked through."""
LOG_LINES: Final = 30
LOG_SECONDS: Final = 60.0
"""How long before a failure its lines begin."""
MOST_TASKS: Final = 50_000
"""Runs of tasks of which the timeline has the attempts."""
_EPISODE: Final = re.compile(r"episode (\d+)$")
_TASK: Final = re.compile(r"(?:attempt \d+ of )?task (.+)\[(\d+)\]$")
_CONDUCTOR: Final = re.compile(r"conductor (\S+)$")


class RunCollector:
    """The sections of one run, for one document. `asked`: episodes by phase whose steps are wanted."""

    def __init__(
        self, source: Source, result: RunResult, *, asked: Mapping[str, frozenset[int]] | None = None
    ) -> None:
        self._source = source
        self._result = result
        self._uid = result.uid
        self._asked = asked or {}
        self.folder = Path(result.folder)

    async def collect(self) -> RunDocument:
        document = RunDocument(summary=await self.summary())
        for name, make in self.sections.items():
            try:
                setattr(document, name, await make())
            except Unreachable:
                raise
            except (GovernorError, OSError, ValueError) as error:
                document.missing.append(f"{name.replace('_', ' ')}: {error}")
        return document

    @property
    def sections(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        """By the field of the document."""
        return {
            "failures": self.failures,
            "curves": self.curves,
            "timeline": self.timeline,
            "usage": self.usage,
            "episodes": self.episodes,
            "steps": self.steps,
            "sessions": self.sessions,
            "tasks": self.tasks,
            "run_file": self.run_file,
            "environment": self.environment,
        }

    async def summary(self) -> Summary:
        found = self._result
        status = None if found.outcome != "in work" else await self._source.status(self._uid)
        return Summary(
            uid=found.uid,
            name=found.name,
            outcome=found.outcome,
            state=status.state if status is not None else found.reason if self._is_in_work else "ended",
            reason="" if self._is_in_work else found.reason,
            waits_for=status.waits_for if status is not None else "",
            submitted_at=found.submitted_at,
            started_at=found.started_at,
            ended_at=None if self._is_in_work else found.ended_at,
            seconds=found.seconds,
            parent=found.parent,
            submitted_by=found.submitted_by,
            code_changed=found.code_changed,
            folder=found.folder,
            phases=[msgspec.structs.replace(phase, tasks=(), failures=()) for phase in found.phases],
        )

    @property
    def _is_in_work(self) -> bool:
        return self._result.outcome == "in work"

    # -- failures ----------------------------------------------------------------------------------------------

    async def failures(self) -> list[Failure]:
        groups = [(phase.name, group) for phase in self._result.phases for group in phase.failures]
        groups += [("", group) for group in await self._deaths()]
        groups.sort(key=lambda each: -each[1].number)
        return [
            await self._failure(phase, group, with_log=place < LOG_CAUSES)
            for place, (phase, group) in enumerate(groups[:MOST_CAUSES])
        ]

    async def _deaths(self) -> list[FailureGroup]:
        """One for each conductor that has failed or died by itself: those are not of a phase."""
        found: dict[str, list[RunEvent]] = {}
        deaths = Deaths()
        try:
            async for event in self._source.events(self._uid, CONDUCTOR_KINDS):
                if deaths.is_one(event.kind, event.data):
                    found.setdefault(event.data["conductor"], []).append(event)
        except Unreachable:
            raise
        except GovernorError:  # only the result is left, which has those of phases
            return []
        return [
            FailureGroup(
                kind="conductor",
                number=len(events),
                outcome="crashed",
                reason="",
                first=f"conductor {name}",
                event=events[0].seq,
            )
            for name, events in found.items()
        ]

    async def _failure(self, phase: str, group: FailureGroup, *, with_log: bool) -> Failure:
        made = Failure(
            phase=phase,
            kind=group.kind,
            number=group.number,
            outcome=group.outcome,
            reason=group.reason,
            first=group.first,
            others=group.others,
            failure_kind=group.failure_kind,
        )
        if not group.event:
            return made
        listed = await self._source.failures(self._uid, after=group.event - 1, limit=1)
        if not listed.failures or listed.failures[0].event != group.event:
            return made
        first = listed.failures[0]
        made.reason = made.reason or first.reason
        made.traceback = listed.tracebacks.get(first.traceback, "")
        if with_log:
            made.log = await self._log(group.first, phase, first.at)
        return made

    async def _log(self, what: str, phase: str, at: float) -> list[LogLine]:
        """The last lines of what failed at that time."""
        asked = ReadOutput(uid=self._uid, since=at - LOG_SECONDS)
        if (found := _EPISODE.search(what)) is not None:
            asked = msgspec.structs.replace(asked, episode=int(found[1]))
        elif (found := _TASK.search(what)) is not None:
            asked = msgspec.structs.replace(asked, task=found[1], run=int(found[2]))
        elif (found := _CONDUCTOR.search(what)) is not None:
            asked = msgspec.structs.replace(asked, conductor=found[1])
        else:
            return []
        lines: list[LogLine] = []
        async for page in self._source.output(asked):
            lines += [
                LogLine(
                    at=line.at,
                    stream=line.stream,
                    level=line.level,
                    text=line.text[:1000],
                    where=f"{what}, in {line.conductor}",
                )
                for line in page.lines
                if line.at <= at + 1.0 and (not phase or line.phase in ("", phase)) and not line.dropped
            ]
            del lines[:-LOG_LINES]
            if page.lines and page.lines[-1].at > at + 1.0:
                break
        return lines

    # -- curves ------------------------------------------------------------------------------------------------

    async def curves(self) -> list[CurveData]:
        first = await self._source.curves(self._uid, "return")
        names = list(dict.fromkeys(name for each in first.phases for name in each.metrics))
        names.sort(key=lambda name: (name != "return", name != "steps", name.startswith(EVALUATION)))
        made: list[CurveData] = []
        for name in names[:MOST_METRICS]:
            found = first if name == "return" else await self._source.curves(self._uid, name)
            made += [
                _curve(each.phase, each.mode, name, each.curve)
                for each in found.phases
                if each.curve is not None
            ]
        return made

    async def timeline(self) -> Any:
        tasks = sum(sum(phase.task_outcomes.values()) for phase in self._result.phases)
        left_out = 0 if tasks <= MOST_TASKS else tasks
        kinds = (*timeline.KINDS, *(timeline.TASK_KINDS if not left_out else ()))
        events = [event async for event in self._source.events(self._uid, kinds)]
        now = time.time() if self._is_in_work else None
        return timeline.timeline_of(events, now=now, left_out=left_out)

    async def usage(self) -> Usage | None:
        lines = await asyncio.to_thread(usage.read, self.folder / usage.FILE)
        if not lines:
            return None
        begin = self._result.started_at or lines[0].at
        names = dict.fromkeys(name for line in lines for name in line.conductors)
        of = {name: [line.conductors.get(name, (None, None)) for line in lines] for name in names}
        return Usage(
            at=[round(line.at - begin, 3) for line in lines],
            conductors={
                name: ConductorUsage(cpu=[cpu for cpu, _ in found], memory=[memory for _, memory in found])
                for name, found in of.items()
            },
        )

    async def environment(self) -> dict[str, Any] | None:
        path = self.folder / environment.FILE
        if not await asyncio.to_thread(path.exists):
            return None
        found: dict[str, Any] = msgspec.json.decode(await asyncio.to_thread(path.read_bytes))
        return found

    # -- rows --------------------------------------------------------------------------------------------------

    @cached_property
    def _reading(self) -> asyncio.Future[list[PhaseEpisodes]]:
        return asyncio.ensure_future(asyncio.to_thread(self._read_episodes))

    def _read_episodes(self) -> list[PhaseEpisodes]:
        names = [phase.name for phase in self._result.phases if phase.episodes]
        if names and not (self.folder / "episodes").is_dir():
            raise FileNotFoundError(f"the files of the run, in {self.folder}, are not on this machine")
        most = room_of_a_phase(
            [sum(phase.episodes.values()) for phase in self._result.phases if phase.episodes]
        )
        return [
            PhaseEpisodes(name, most).read(self.folder, self._asked.get(name, frozenset())) for name in names
        ]

    async def episodes(self) -> Table:
        return await asyncio.to_thread(episode_table, await self._reading, self._uid)

    @cached_property
    def _sampling(self) -> asyncio.Future[tuple[list[EpisodeSteps], list[Session]]]:
        return asyncio.ensure_future(self._sample())

    async def _sample(self) -> tuple[list[EpisodeSteps], list[Session]]:
        from governor.report.samples import samples_of  # noqa: PLC0415  # Arrow, where steps were recorded

        steps: list[EpisodeSteps] = []
        sessions: list[Session] = []
        for phase in await self._reading:
            some, others = await asyncio.to_thread(samples_of, self.folder, phase.phase, phase.chosen())
            steps += some
            sessions += others
        return steps, sessions

    async def steps(self) -> list[EpisodeSteps]:
        return (await self._sampling)[0]

    async def sessions(self) -> list[Session]:
        return (await self._sampling)[1]

    async def tasks(self) -> Table:
        return await asyncio.to_thread(task_table, self._result.phases, self.folder, self._uid)

    async def run_file(self) -> str:
        text = await asyncio.to_thread((self.folder / "run.json").read_bytes)
        written = msgspec.json.decode(text)
        return yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=110)


def _curve(phase: str, mode: str, metric: str, curve: Curve) -> CurveData:
    windows = curve.in_order
    shares = [window.quantiles(QUANTILES) for window in windows]
    columns = {
        f"p{round(100 * share)}": [values[place] for values in shares]
        for place, share in enumerate(QUANTILES)
    }
    return CurveData(
        phase=phase,
        mode=mode,
        metric=metric,
        by_step=curve.by_step,
        evaluation=metric.startswith(EVALUATION),
        width=1 << curve.shift,
        count=curve.count,
        unusable=curve.unusable,
        windows=Windows(
            first=[window.first_key for window in windows],
            last=[window.last_key for window in windows],
            step_first=[window.first_step for window in windows],
            step_last=[window.last_step for window in windows],
            at_first=[window.first_at for window in windows],
            at_last=[window.last_at for window in windows],
            count=[window.count for window in windows],
            mean=[_exactly(window.mean) for window in windows],
            low=[window.low for window in windows],
            high=[window.high for window in windows],
            **{name: values for name, values in columns.items() if name in Windows.__struct_fields__},
        ),
    )


def _exactly(value: float) -> float:
    return value if math.isfinite(value) else 0.0


async def collect_run(
    source: Source, uid: str, *, asked: Mapping[str, frozenset[int]] | None = None
) -> RunDocument:
    """Raises GovernorError where not even a result is found."""
    return await RunCollector(source, await source.result(uid), asked=asked).collect()


def document_of(runs: Sequence[RunDocument], *, live: bool = False) -> Document:
    return Document(
        made_at=time.time(), governor=__version__, live=live, runs=[*runs], comparison=compare(runs)
    )

"""Who lives and does nothing: how long each conductor of a run has been silent, and how long the run has made no progress.

Rules:
1. A process that has stopped (SIGSTOP) is silent after `silence` seconds of that. One that runs and does not answer may have
   its event loop held up by user code in C: it has the time that this code is allowed, and `silence` beyond it.
2. Time in which nobody could be heard counts for nobody: the broker was away, or the daemon itself was late.
3. Nobody is told of twice; a conductor's next incarnation begins anew.

Pure: time arrives with each call, in monotonic seconds. `governor.runs.liveness_probe` asks, and tells the state machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from governor.episodes.text.entries import is_language_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.run_file.model import Run

LATE_SECONDS: Final = 1.0
"""A beat that comes later than this tells that the daemon was stopped, or busy: no silence was observed meanwhile."""
USER_CODE_SECONDS: Final = 60.0
"""What user code may take for all that is not an episode: to build, to save, to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A conductor that is to be heard; `stopped` says /proc, `patience` is what `patience` gives for it."""

    conductor: str
    incarnation: int
    stopped: bool
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    conductor: str
    incarnation: int
    seconds: float
    stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vital:
    incarnation: int
    since: float
    progress: int | None = None
    stopped: bool = False
    told: bool = False


class Liveness:
    """Of the conductors of one run. `moves` counts how often one of them told of progress."""

    def __init__(self, *, silence: float, interval: float, now: float) -> None:
        """A `beat` is to come each `interval` seconds."""
        self.moves = 0
        self._silence = silence
        self._interval = interval
        self._last = now
        self._vitals: dict[str, _Vital] = {}

    def heard(self, conductor: str, incarnation: int, progress: int, now: float) -> None:
        """It has answered; `progress` is a count of its own."""
        vital = self._vitals.get(conductor)
        if vital is None or vital.incarnation != incarnation:
            return
        self.moves += vital.progress is not None and vital.progress != progress
        self._vitals[conductor] = replace(vital, since=now, progress=progress)

    def beat(self, seen: Sequence[Sample], *, broker: bool, now: float) -> tuple[list[Silent], bool]:
        """Who is silent, and whether the time since the last beat counts. `broker`: it has answered since."""
        counts = broker and now - self._last <= self._interval + LATE_SECONDS
        self._last = now
        vitals = {each.conductor: self._look(each, counts=counts, now=now) for each in seen}
        found: list[Silent] = []
        for each in seen:
            vital = vitals[each.conductor]
            seconds = now - vital.since
            if not vital.told and seconds >= (self._silence if each.stopped else each.patience):
                vitals[each.conductor] = replace(vital, told=True)
                found.append(
                    Silent(
                        conductor=each.conductor,
                        incarnation=each.incarnation,
                        seconds=seconds,
                        stopped=each.stopped,
                    )
                )
        self._vitals = vitals
        return found, counts

    def _look(self, each: Sample, *, counts: bool, now: float) -> _Vital:
        """A process that has stopped, or goes on, begins anew: how long it could not answer before is not its silence."""
        vital = self._vitals.get(each.conductor)
        if vital is None or vital.incarnation != each.incarnation:
            return _Vital(incarnation=each.incarnation, since=now, stopped=each.stopped)
        if counts and each.stopped == vital.stopped:
            return vital
        return replace(vital, since=now, stopped=each.stopped)


class Stall:
    """Whether a run makes progress: `since` is the monotonic second of the last one, as far as time counted."""

    def __init__(self, *, timeout: float | None, now: float) -> None:
        self.since = now
        self._timeout = inf if timeout is None else timeout
        self._count = 0
        self._stalled = False

    def beat(
        self, count: int, *, at_work: bool, counts: bool, now: float
    ) -> Literal["stalled", "moved"] | None:
        """`count` is of all that is progress. Whoever is not `at_work` in a phase has deadlines of its own. Says each change
        once.
        """
        moved = count != self._count
        self._count = count
        if moved or not at_work:
            was, self._stalled = self._stalled, False
            self.since = now
            return "moved" if was and moved else None
        if not counts:
            self.since = self.since if self._stalled else now
        if self._stalled or now - self.since < self._timeout:
            return None
        self._stalled = True
        return "stalled"


def patience(run: Run, conductor: str, phase: int) -> float:
    """Seconds of silence of a process that runs, before it is taken for frozen; `inf`: its user code has no deadline, and
    what it does is the business of `limits.stall_timeout`.
    """
    silence = run.deadlines.silence
    simulate = run.phases[phase].simulate
    if simulate is None:
        return silence
    kind, _, name = conductor.partition(".")
    agents = run.conductors.agents
    if kind == "simulation":
        inside = simulate.transport == "in_process"
        holds = inside and not is_language_model(agents[simulate.agent_names[0]].entry)
    elif simulate.transport != "conductors":
        holds = False
    else:
        holds = name == simulate.environment if kind == "environment" else name in simulate.agent_names
    if not holds:
        return silence
    return silence + max(simulate.episode_timeout or inf, USER_CODE_SECONDS)

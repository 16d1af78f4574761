"""How long each conductor of a run has been silent, and how long the run has made no progress.

Rules:
1. A stopped process (SIGSTOP) is silent after `silence` seconds. In one that runs and does not answer, C code of the
   user may block the event loop: it has the time allowed for that code, plus `silence`.
2. Time during which the broker or the daemon was unavailable is not counted against any conductor.
3. Each silence is reported once; the next incarnation of a conductor starts from zero.

Pure: time is passed to each call, in monotonic seconds. `governor.runs.liveness_probe` sends the pings and informs
the state machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from governor.episodes.text.entries import is_language_model
from governor.run_file.model import SERVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from governor.run_file.model import Run

LATE_SECONDS: Final = 1.0
"""A check later than this means that the daemon was stopped or busy: no silence was observed in that time."""
USER_CODE_SECONDS: Final = 60.0
"""Time for user code outside episodes: to build, to save, to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A conductor that must answer; `stopped` is from /proc, `silence_limit` (seconds) from the function of that
    name.
    """

    conductor: str
    incarnation: int
    stopped: bool
    silence_limit: float


@dataclass(slots=True, kw_only=True)
class _Observation:
    incarnation: int
    since: float
    progress: int | None = None
    stopped: bool = False
    reported: bool = False


class Liveness:
    """Tracks the conductors of one run. `changes` counts reported changes of their progress."""

    def __init__(self, *, silence: float, interval: float, now: float) -> None:
        """`check` must be called each `interval` seconds."""
        self.changes = 0
        self._silence = silence
        self._interval = interval
        self._last = now
        self._known: dict[str, _Observation] = {}

    def answered(self, conductor: str, incarnation: int, progress: int, now: float) -> None:
        """The conductor has answered; `progress` is its own counter."""
        known = self._known.get(conductor)
        if known is None or known.incarnation != incarnation:
            return
        self.changes += known.progress is not None and known.progress != progress
        known.since, known.progress = now, progress

    def check(
        self, seen: Sequence[Sample], *, broker: bool, now: float
    ) -> tuple[list[tuple[Sample, float]], bool]:
        """The conductors that are newly silent, with the seconds, and whether the time since the last check counts.
        `broker`: it has answered since then.
        """
        counts = broker and now - self._last <= self._interval + LATE_SECONDS
        self._last = now
        before, self._known = self._known, {}
        silent = []
        for each in seen:
            known = before.get(each.conductor)
            if known is None or known.incarnation != each.incarnation:
                known = _Observation(incarnation=each.incarnation, since=now, stopped=each.stopped)
            elif not counts or each.stopped != known.stopped:  # what stops or continues starts from zero
                known.since, known.stopped = now, each.stopped
            self._known[each.conductor] = known
            seconds = now - known.since
            if not known.reported and seconds >= (self._silence if each.stopped else each.silence_limit):
                known.reported = True
                silent.append((each, seconds))
        return silent, counts


class Stall:
    """Detects a run without progress: `since` is the monotonic second of the last progress; time that does not count
    moves it.
    """

    def __init__(self, *, now: float) -> None:
        self.since = now
        self._count = 0
        self._stalled = False

    def check(
        self, count: int, *, timeout: float | None, at_work: bool, counts: bool, now: float
    ) -> Literal["stalled", "resumed"] | None:
        """`count` changes with any progress, and `timeout` is seconds without it. A run that is not `at_work` in a phase has other deadlines. Returns each
        change once.
        """
        changed = count != self._count
        self._count = count
        if changed or not at_work:
            was, self._stalled = self._stalled, False
            self.since = now
            return "resumed" if was and changed else None
        if not counts:
            self.since = self.since if self._stalled else now
        if self._stalled or timeout is None or now - self.since < timeout:
            return None
        self._stalled = True
        return "stalled"


def silence_limit(run: Run, conductor: str, phase: int) -> float:
    """Seconds without an answer after which a running process counts as frozen. `inf`: its user code has no deadline,
    and `limits.stall_timeout` applies.
    """
    silence = run.deadlines.liveness
    simulate = run.phases[phase].simulate
    kind, _, name = conductor.partition(".")
    if simulate is None or kind == SERVICE:
        return silence
    agents = run.conductors.agents
    if kind == "simulation":
        inside = simulate.transport == "in_process"
        holds = inside and not is_language_model(agents[simulate.agent_names[0]].entry)
    elif simulate.transport != "conductors":
        holds = False
    else:
        holds = name == simulate.environment if kind == "environment" else name in simulate.agent_names
    if not holds:
        asked = conductor == run.driver_of(phase) and any(rule.entry for rule in run.phases[phase].until)
        return silence + (USER_CODE_SECONDS if asked else 0.0)
    return silence + max(simulate.episode_timeout or inf, USER_CODE_SECONDS)

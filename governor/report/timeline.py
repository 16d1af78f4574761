"""The timeline of a run from its record: states, phases, processes and attempts at tasks as spans, restarts and kills as moments. Pure.

Rules:
1. Times are those of the record. What was at work when a daemon died ends with the last event before the next daemon, as ``interrupted``.
2. A runner's lane is a place on its node: a process that begins there takes the first lane that is free.
3. Of more than `MOST_SPANS` those that ended badly stay, then the longest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from governor.failures import signal_name
from governor.report.document import Lane, Marks, Spans, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    from governor.messages import RunEvent

MOST_SPANS: Final = 20_000
MOST_LANES: Final = 200
"""Lanes of runners; further attempts are left out."""
KINDS: Final = (
    "run.accepted",
    "run.assigned",
    "run.transition",
    "run.interrupted",
    "run.restarted",
    "run.stalled",
    "run.abort_requested",
    "run.pause_requested",
    "run.continue_requested",
    "run.work_change_requested",
    "run.code_changed",
    "flow.requested",
    "phase.started",
    "phase.ended",
    "conductor.started",
    "conductor.exited",
)
TASK_KINDS: Final = ("task.started", "task.attempt_ended", "task.ended")
"""Those of which there may be millions."""
_RUN: Final = ("run", "run")
_GROUPS: Final = ("run", "phases", "conductors", "runners")
_MOMENTS: Final = {
    "run.interrupted": ("interrupted", "interrupted"),
    "run.restarted": ("restart", "the run began anew"),
    "run.stalled": ("stalled", "no progress"),
    "run.abort_requested": ("limit", "abort was asked for"),
    "run.pause_requested": ("flow", "paused"),
    "run.continue_requested": ("flow", "continued"),
    "run.code_changed": ("interrupted", "its code had changed"),
    "run.work_change_requested": ("flow", "an episode or a task was cancelled, or was to be done again"),
}


@dataclass(slots=True)
class _Span:
    lane: tuple[str, str]
    start: float
    kind: str
    label: str
    detail: str = ""
    end: float | None = None
    outcome: str = ""


class _Builder:
    def __init__(self) -> None:
        self.spans: list[_Span] = []
        self.moments: list[tuple[tuple[str, str], float, str, str]] = []
        self.last = 0.0
        self._open: dict[tuple[object, ...], _Span] = {}
        self._free: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[str, int] = defaultdict(int)
        self._of_pid: dict[tuple[str, int], int] = {}

    def take(self, event: RunEvent) -> None:  # noqa: C901  # one for each kind
        data, at = event.data, event.at
        match event.kind:
            case "run.assigned":
                self._interrupt()
            case "run.transition":
                self._close(("state",), at)
                if data["to"] != "pristine":
                    self._begin(("state",), _Span(_RUN, at, "state", data["to"], data.get("cause", "")))
            case "phase.started":
                span = _Span(("phases", "phases"), at, "phase", data["phase"], data["mode"])
                self._begin(("phase",), span)
            case "phase.ended":
                self._close(("phase",), at, data["end"])
            case "conductor.started":
                self._started(data, at)
            case "conductor.exited":
                self._exited(data, at)
            case "task.started":
                self._attempt(data, at, data.get("pid") or 0, data.get("node") or "")
            case "task.attempt_ended":
                self._attempt_ended(data, at)
            case "task.ended":
                self._attempt_ended(data["record"], at)
            case "flow.requested":
                kind = "restart" if data.get("flow") == "RESTART" else "limit"
                self.moments.append((_RUN, at, kind, f"{data.get('flow', '')} {data.get('reason', '')}"))
            case kind if kind in _MOMENTS:
                self.moments.append((_RUN, at, *_MOMENTS[kind]))
        self.last = max(self.last, at)

    def _begin(self, key: tuple[object, ...], span: _Span) -> None:
        self._open[key] = span
        self.spans.append(span)

    def _close(self, key: tuple[object, ...], at: float, outcome: str = "") -> None:
        if (span := self._open.pop(key, None)) is not None:
            span.end, span.outcome = at, outcome

    def _interrupt(self) -> None:
        """A daemon begins: what an earlier one had at work is over."""
        if self._open:
            self.moments.append((_RUN, self.last, "interrupted", "the daemon was gone from here on"))
        for span in self._open.values():
            span.end, span.outcome = self.last, "interrupted"
        self._open.clear()
        self._free.clear()
        self._places.clear()
        self._of_pid.clear()

    def _started(self, data: dict[str, Any], at: float) -> None:
        name, number = data["conductor"], data["incarnation"]
        label = name if number == 1 else f"{name}, number {number}"
        span = _Span(("conductors", name), at, "process", label, f"pid {data['pid']}")
        self._begin(("conductor", name), span)
        if number > 1:
            self.moments.append((("conductors", name), at, "restart", f"{name} is started again"))

    def _exited(self, data: dict[str, Any], at: float) -> None:
        name, code = data["conductor"], data["exit_code"]
        killed = code is not None and code < 0
        how = "not started" if code is None else f"exit code {code}"
        how = f"killed by {signal_name(-code)}" if killed else how
        is_expected = data.get("expected", False)
        self._close(("conductor", name), at, "" if is_expected else "crashed")
        if not is_expected:
            why = f": {data['reason']}" if data.get("reason") else ""
            kind = "kill" if killed else "failure"
            self.moments.append((("conductors", name), at, kind, f"{name}: {how}{why}"))

    def _attempt(self, data: dict[str, Any], at: float, pid: int, node: str) -> None:
        key = ("task", data["task"], data["run"])
        place = self._place(node, pid)
        label = f"{data['task']}[{data['run']}]"
        detail = f"attempt {data.get('attempt', 1)}" + (f", pid {pid} on {node}" if pid else "")
        lane = ("runners", f"{node or 'runner'} {place + 1}")
        self._begin(key, _Span(lane, at, "attempt", label, detail))
        self._of_pid[node, pid] = place

    def _place(self, node: str, pid: int) -> int:
        free = self._free[node]
        own = self._of_pid.get((node, pid))
        if own in free:
            free.remove(own)
            return own
        if free:
            return free.pop(free.index(min(free)))
        self._places[node] += 1
        return self._places[node] - 1

    def _attempt_ended(self, data: dict[str, Any], at: float) -> None:
        key = ("task", data["task"], data["run"])
        if key not in self._open:
            if not data.get("seconds") or data.get("outcome") in ("upstream_failed", "cancelled"):
                return
            self._attempt(data, at - data["seconds"], 0, "")
        span = self._open[key]
        self._close(key, at, data["outcome"])
        span.detail += f"\n{data['error']}" if data.get("error") else ""
        node, _, place = span.lane[1].rpartition(" ")
        self._free["" if node == "runner" else node].append(int(place) - 1)


def timeline_of(
    events: Iterable[RunEvent], *, now: float | None = None, left_out: int = 0
) -> Timeline | None:
    """`events` are those of `KINDS`, and of `TASK_KINDS` unless they are too many: then `left_out` attempts are missing. `now` is the
    end for a run at work. None without any event.
    """
    builder = _Builder()
    begin = None
    for event in events:
        begin = event.at if begin is None else begin
        builder.take(event)
    if begin is None:
        return None
    spans = _most(builder.spans)
    lanes = _lanes(spans, builder)
    index = {lane: place for place, lane in enumerate(lanes)}
    shown = [span for span in spans if span.lane in index]
    moments = [each for each in builder.moments if each[0] in index]
    return Timeline(
        begin=begin,
        end=max(builder.last, now or 0.0),
        lanes=[Lane(name=name, group=_group(group)) for group, name in lanes],
        spans=Spans(
            lane=[index[span.lane] for span in shown],
            start=[_since(begin, span.start) for span in shown],
            end=[None if span.end is None else _since(begin, span.end) for span in shown],
            kind=[span.kind for span in shown],
            label=[span.label for span in shown],
            outcome=[span.outcome for span in shown],
            detail=[span.detail for span in shown],
        ),
        marks=Marks(
            lane=[index[lane] for lane, *_ in moments],
            at=[_since(begin, at) for _, at, *_ in moments],
            kind=[kind for *_, kind, _ in moments],
            label=[label for *_, label in moments],
        ),
        left_out=left_out + len(builder.spans) - len(shown),
    )


def _since(begin: float, at: float) -> float:
    """Microseconds are all that two clocks can tell apart."""
    return round(at - begin, 6)


def _most(spans: list[_Span]) -> list[_Span]:
    if len(spans) <= MOST_SPANS:
        return spans

    def weight(span: _Span) -> tuple[bool, bool, float]:
        is_bad = span.outcome not in ("", "succeeded")
        return span.kind != "attempt", is_bad, (span.end or span.start) - span.start

    kept = set(map(id, sorted(spans, key=weight, reverse=True)[:MOST_SPANS]))
    return [span for span in spans if id(span) in kept]


def _lanes(spans: list[_Span], builder: _Builder) -> list[tuple[str, str]]:
    """In the order of their groups; those of runners by name."""
    found = dict.fromkeys([*(span.lane for span in spans), *(lane for lane, *_ in builder.moments)])
    runners = sorted((lane for lane in found if lane[0] == "runners"), key=_by_number)[:MOST_LANES]
    return [*(lane for group in _GROUPS[:3] for lane in found if lane[0] == group), *runners]


def _by_number(lane: tuple[str, str]) -> tuple[str, int]:
    node, _, place = lane[1].rpartition(" ")
    return node, int(place)


def _group(name: str) -> Literal["run", "phases", "conductors", "runners"]:
    return next(group for group in _GROUPS if group == name)

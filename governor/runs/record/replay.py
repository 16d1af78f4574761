"""Replays a recorded run through the pure state machine: are its answers today those on record?

Rules:
1. Each event of the machine is decoded from its line of the record and passed to `states.advance`; the entries that
   `event_log.entries` makes of the answer must be the lines that follow, value by value. Other recorded data
   (`detail`, the numbers of a phase) are ignored.
2. Lines that no step wrote name their author (`by`): recovery, for what an earlier invocation could not record; the
   daemon's API, for a run that never left the queue; and a resumption, for work of another run. Records of work
   (`episode.ended`, `task.*`, `run.accepted`) are counted.
3. Numbers have no gap, and nothing follows `run.ended`.

Events are taken one at a time, so a run of any length needs little memory.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from governor.runs.record.event_log import entries
from states import Pristine, Step, advance
from states.events import EVENTS, RunAssigned

if TYPE_CHECKING:
    from governor.messages import RunEvent
    from governor.runs.record.event_log import Entry
    from states.base import State
    from states.events import Event

_KINDS: Final[dict[str, type[Event]]] = {kind.kind: kind for kind in EVENTS}
_NOTES: Final = frozenset({"phase.started", "phase.ended", "run.transition", "run.interrupted", "run.ended"})
_END: Final = "run.ended"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a record that the machine does not lead to; `expected` and `recorded` are one line each."""

    seq: int
    kind: str
    expected: str
    recorded: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """`steps` of the machine in `events` lines, over so many `invocations` of the daemon. `state` is the last one."""

    uid: str
    events: int
    steps: int
    invocations: int
    state: str
    ended: bool
    difference: Difference | None = None


class Replay:
    """Replays one run: `take` each event in order, then `end`."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._state: State = Pristine()
        self._due: deque[Entry] = deque()
        self._seq = self._steps = self._invocations = 0
        self._ended = False
        self._difference: Difference | None = None

    def take(self, event: RunEvent) -> bool:
        """Whether the record agrees so far."""
        if self._difference is None:
            self._take(event)
        return self._difference is None

    def end(self, *, whole: bool = True) -> Replayed:
        """`whole`: everything that was recorded together with the last event is included."""
        if whole and self._due and self._difference is None:
            kind, data = self._due[0]
            self._differs(self._seq + 1, kind, f"{kind} {data}", "nothing more")
        return Replayed(
            uid=self._uid,
            events=self._seq,
            steps=self._steps,
            invocations=self._invocations,
            state=self._state.name,
            ended=self._ended,
            difference=self._difference,
        )

    def _take(self, event: RunEvent) -> None:
        if event.seq != self._seq + 1:
            self._differs(event.seq, event.kind, f"number {self._seq + 1}", f"number {event.seq}")
            return
        self._seq = event.seq
        if self._ended:
            self._differs(event.seq, event.kind, "nothing after run.ended", event.kind)
        elif self._due:
            self._compare(event, *self._due.popleft())
        elif isinstance(event.data.get("by"), str):  # written by a part of the daemon, not by this machine
            pass
        elif event.kind in _KINDS:
            self._step(event, _KINDS[event.kind])
        elif event.kind in _NOTES:
            self._differs(event.seq, event.kind, f"no {event.kind} in state {self._state.name}", event.kind)
        self._ended = self._ended or event.kind == _END

    def _step(self, recorded: RunEvent, kind: type[Event]) -> None:
        try:
            event = msgspec.convert({**recorded.data, "run": self._uid}, type=kind, strict=False)
        except msgspec.ValidationError as error:
            self._differs(recorded.seq, recorded.kind, f"{kind.__name__} of this version", f"{error}")
            return
        if isinstance(event, RunAssigned):
            self._invocations += 1
            self._state = Pristine()
        answer = advance(self._state, event)
        if not isinstance(answer, Step):
            what = f"{type(answer).__name__.lower()} in state {self._state.name}: {answer.why}"
            self._differs(recorded.seq, recorded.kind, what, "a step")
            return
        self._steps += 1
        self._due.extend(entries(self._state, event, answer))
        self._state = answer.state
        self._compare(recorded, *self._due.popleft())

    def _compare(self, recorded: RunEvent, kind: str, data: dict[str, Any]) -> None:
        if recorded.kind != kind:
            self._differs(recorded.seq, recorded.kind, kind, recorded.kind)
            return
        expected = msgspec.to_builtins(msgspec.msgpack.decode(msgspec.msgpack.encode(data)))
        for name, value in expected.items():
            if (other := recorded.data.get(name)) != value:
                self._differs(recorded.seq, kind, f"{name} = {value!r}", f"{name} = {other!r}")
                return

    def _differs(self, seq: int, kind: str, expected: str, recorded: str) -> None:
        self._difference = Difference(seq=seq, kind=kind, expected=expected, recorded=recorded)

"""What a phase bears of failures (`failures` in the run file), of episodes and of tasks alike. Pure.

Rules:
1. A failure is an episode or a run of a task that failed, timed out or crashed. What was cancelled, and a task that could
   not begin because of others, is none, and does not end a sequence of failures either.
2. The counts follow from the record, so a later process continues them: of episodes they are in `PhaseFigures`.
3. Episodes of evaluations count like others, and are planned like others.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from governor.failures import kind_of
from governor.messages import BAD, BAD_TASKS, COMPLETE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from governor.messages import EpisodeRecord, FailureKind, Failures, TaskRecord

BoundsLeft: TypeAlias = tuple[int | None, int | None, int]
"""How many more may fail, how many may in a row, and how many have in a row until now."""


def allowed(failures: Failures | None, planned: int) -> int | None:
    """How many of `planned` may fail; None: all."""
    if failures is None or (failures.at_most is None and failures.consecutive is not None):
        return None
    at_most = failures.at_most or 0
    if isinstance(at_most, int):
        return at_most
    return int(Decimal(at_most.removesuffix("%")) * planned // 100)


class FailureBounds:
    """The bounds of a phase, and the failures until now. `unit` is that of the `planned` ones, as "episodes"."""

    __slots__ = ("_consecutive", "_named", "allowed", "exceeded", "failed", "in_a_row")

    def __init__(
        self, failures: Failures | None, planned: int, unit: str, *, failed: int = 0, in_a_row: int = 0
    ) -> None:
        self.allowed = allowed(failures, planned)
        self.failed, self.in_a_row = failed, in_a_row
        self._consecutive = None if failures is None else failures.consecutive
        self._named = f"failures.at_most of {self.allowed}"
        if failures is not None and isinstance(failures.at_most, str):
            self._named += f" ({failures.at_most} of {planned} {unit})"
        self.exceeded = ""
        """The bound that was passed first."""
        self._check()

    def add(self, outcome: str) -> bool:
        """Of an episode or a run of a task, in the order of their ends; whether a bound is passed by now."""
        if outcome in BAD or outcome in BAD_TASKS:
            self.failed += 1
            self.in_a_row += 1
            if not self.exceeded:
                self._check()
        elif outcome in COMPLETE or outcome == "succeeded":
            self.in_a_row = 0
        return bool(self.exceeded)

    @property
    def left(self) -> BoundsLeft | None:
        """What may still fail; None: anything."""
        if self.allowed is None and self._consecutive is None:
            return None
        return (
            None if self.allowed is None else self.allowed - self.failed,
            self._consecutive,
            self.in_a_row,
        )

    @classmethod
    def of_left(cls, left: BoundsLeft | None) -> FailureBounds:
        """Bounds of some episodes of a phase that are played elsewhere."""
        bounds = cls(None, 0, "")
        if left is not None:
            bounds.allowed, bounds._consecutive, bounds.in_a_row = left
        return bounds

    def _check(self) -> None:
        if self.allowed is not None and self.failed > self.allowed:
            self.exceeded = self._named
        elif self._consecutive is not None and self.in_a_row >= self._consecutive:
            self.exceeded = f"failures.consecutive of {self._consecutive}"


class CountedTasks:
    """Passes records of ended runs of tasks on, and counts their failures."""

    def __init__(self, records: Iterable[TaskRecord]) -> None:
        self._records = records
        self._bounds = FailureBounds(None, 0, "")

    def __iter__(self) -> Iterator[TaskRecord]:
        for record in self._records:
            self._bounds.add(record.outcome)
            yield record

    @property
    def failed(self) -> int:
        return self._bounds.failed

    @property
    def in_a_row(self) -> int:
        return self._bounds.in_a_row


class Retries:
    """Which episodes are played again: `retries` attempts by kind of failure. Keeps those that have not ended, which are few."""

    def __init__(
        self, retries: Mapping[str, int], attempts: Mapping[int, tuple[FailureKind, ...]] | None = None
    ) -> None:
        self._retries = retries
        self._attempts = dict(attempts or {})

    def __bool__(self) -> bool:
        return bool(self._retries)

    def is_due(self, record: EpisodeRecord) -> bool:
        """Whether another attempt follows this one."""
        if not self._retries or record.outcome not in BAD:
            return False
        kind = kind_of(record.outcome, record.reason)
        return self._attempts.get(record.index, ()).count(kind) < self._retries.get(kind, 0)

    def of(self, index: int) -> int:
        """How many attempts at an episode have failed, and do not count."""
        return len(self._attempts.get(index, ()))

    def failed(self, record: EpisodeRecord) -> None:
        """The attempt is over, and another one follows."""
        kind = kind_of(record.outcome, record.reason)
        self._attempts[record.index] = (*self._attempts.get(record.index, ()), kind)

    def ended(self, index: int) -> None:
        """The episode has its outcome."""
        self._attempts.pop(index, None)

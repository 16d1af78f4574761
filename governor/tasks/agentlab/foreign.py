"""Tasks of Ray that this engine did not make, waited for with a limit: Ray's own means, as far as they go.

Rules:
1. Running time counts from the start of the last attempt, as Ray's GCS knows it (`starts_of`, which needs no dashboard). A
   task that has not begun is not late, however long it waits. Where Ray does not know a task, time counts from the call,
   and the error says so.
2. What is late is ended by force at once: a soft cancellation first makes code that holds the GIL unkillable by Ray
   (2.60). A method of an actor cannot be forced: it is asked to end, and given up.
3. Nobody waits for more than `GIVEN_UP_SECONDS` for the end of what was ended.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from math import inf
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.messages import TaskRecord
from governor.tasks.errors import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GIVEN_UP_SECONDS: Final = 5.0
REPORTED_SECONDS: Final = 1.0
"""The GCS learns so much later of a start: drivers and workers report once a second, unless they are configured otherwise."""
UNKNOWN_SECONDS: Final = 5.0
"""So long after its timeout a task may be unknown to the GCS before it is ended."""
SPARING: Final = 10
"""Looks take one part of the time in so many at most: one takes 0.5 s where the GCS knows 20,000 tasks (measured)."""
LOOK_SECONDS: Final = 0.1

log = logs.get_logger()


class Foreign:
    """Bare ``ObjectRef`` by name. `timeout`: seconds of running time for each."""

    def __init__(self, references: Mapping[str, Any], timeout: float) -> None:
        self._references = dict(references)
        self._timeout = timeout
        self._called = time.time()
        self._due: dict[Any, float] = {}
        """When each is looked at next: it cannot be late before."""
        self._look_at = 0.0
        self._told = False
        """Whether it was said that Ray can't be asked."""
        self._starts: dict[Any, float | None] = {}
        """As Ray told them last; None: not begun."""
        self._ended: dict[Any, float] = {}
        """When each was ended."""

    def wait(self, poll_interval: float) -> dict[str, Any]:
        """Returns when all have ended or were given up: their results or exceptions, by name. Looks at their running times
        when the first may be late, for Ray has no event for that, and waits for `poll_interval` seconds at most at one go.
        """
        if not self._references:
            return {}
        import ray  # noqa: PLC0415  # the caller has it

        left = dict.fromkeys(self._references.values())
        while left:
            done, _ = ray.wait(list(left), num_returns=len(left), timeout=self._pause(left, poll_interval))
            for reference in done:
                del left[reference]
            now = time.time()
            for reference in [each for each in left if now - self._ended.get(each, now) >= GIVEN_UP_SECONDS]:
                del left[reference]
            self._end_late(left)
        return {name: self._result(name, reference) for name, reference in self._references.items()}

    def _pause(self, left: Iterable[Any], poll_interval: float) -> float:
        dues = [
            self._ended[reference] + GIVEN_UP_SECONDS
            if reference in self._ended
            else max(self._due.get(reference, 0.0), self._look_at)
            for reference in left
        ]
        return max(min(poll_interval, min(dues) - time.time()), 0.001)

    def _end_late(self, left: Iterable[Any]) -> None:
        now = time.time()
        due = [each for each in left if each not in self._ended and now >= self._due.get(each, 0.0)]
        if not due or now < self._look_at:
            return
        try:
            self._starts |= starts_of(due)
        except Exception as error:  # noqa: BLE001  # Ray's client mode, or another Ray than the one this was written for
            if not self._told:
                self._told = True
                log.warning("ray.starts_unknown", reason=f"{type(error).__name__}: {error}")
        looked = time.time()
        self._look_at = looked + SPARING * (looked - now)
        for reference in due:
            late_at = self._late_at(reference)
            if now >= late_at:
                self._end(reference, now)
            # It may begin, or have begun, as early as that
            again = late_at if self._starts.get(reference) else now - REPORTED_SECONDS + self._timeout
            self._due[reference] = max(min(again, late_at), now + LOOK_SECONDS)

    def _late_at(self, reference: Any) -> float:
        if reference not in self._starts:
            return self._called + self._timeout + UNKNOWN_SECONDS
        start = self._starts[reference]
        return inf if start is None else start + self._timeout

    def _end(self, reference: Any, now: float) -> None:
        import ray  # noqa: PLC0415  # as above

        self._ended[reference] = now
        try:
            ray.cancel(reference, force=True, recursive=False)
        except ValueError:  # a method of an actor
            ray.cancel(reference, force=False)

    def _result(self, name: str, reference: Any) -> Any:
        import ray  # noqa: PLC0415  # as above

        ended = self._ended.get(reference)
        try:
            result = ray.get(reference, timeout=None if ended is None else 0)
        except Exception as error:  # noqa: BLE001  # that is what the caller asked for
            result = error
        if ended is None or not isinstance(result, Exception):
            return result
        start = self._starts.get(reference)
        took = f"ran longer than its timeout of {self._timeout:g} s"
        if start is None:
            took = (
                f"did not end within its timeout of {self._timeout:g} s after it was waited for; Ray does not tell when it "
                "began, nor whether it did"
            )
        lives = (
            " and can't be ended: it may run on" if isinstance(result, ray.exceptions.GetTimeoutError) else ""
        )
        return TaskFailed(
            TaskRecord(
                task=name,
                run=0,
                outcome="timed_out",
                attempts=1,
                seconds=ended - (self._called if start is None else start),
                error=f"{took}{lives}",
            )
        )


def end_of(dependency: Any) -> Future[TaskRecord]:
    """The end of something that a task waits for: an ``ObjectRef``, or any value, which has ended."""
    import ray  # noqa: PLC0415  # heavy

    ended: Future[TaskRecord] = Future()
    if not isinstance(dependency, ray.ObjectRef):
        ended.set_result(TaskRecord(task="", run=0, outcome="succeeded"))
        return ended
    name = dependency.hex()

    def note(outcome: Future[Any]) -> None:
        error = outcome.exception()
        record = TaskRecord(task=name, run=0, outcome="succeeded", attempts=1)
        if error is not None:
            reason = f"{type(error).__name__}: {error}"
            record = TaskRecord(task=name, run=0, outcome="failed", attempts=1, error=reason)
        ended.set_result(record)

    dependency.future().add_done_callback(note)
    return ended


def elapsed_of(reference: Any) -> float | None:
    """Seconds since its start; None when it has not begun, or Ray does not know yet."""
    try:
        start = starts_of([reference]).get(reference)
    except Exception as error:  # noqa: BLE001  # as in `_end_late`
        log.debug("ray.starts_unknown", reason=f"{type(error).__name__}: {error}")
        return None
    return None if start is None else time.time() - start


def starts_of(references: Iterable[Any]) -> dict[Any, float | None]:
    """When the last attempt of each began, in seconds since the epoch, by the GCS; None: it has not begun. What the GCS has not
    heard of (see `REPORTED_SECONDS`) is not in it. Raises many things where it cannot be asked.
    """
    # Public is only the state API, which needs the dashboard. This is what ray.timeline() is made of.
    from ray._private.state import state  # noqa: PLC0415  # the caller has it
    from ray.core.generated.common_pb2 import TaskStatus  # type: ignore[attr-defined]  # noqa: PLC0415  # made by protobuf

    tasks = {each: each.task_id().binary() for each in references}  # a task may have several
    asked = set(tasks.values())
    known = [event for event in state._get_all_task_events() if event.task_id in asked]  # noqa: SLF001  # as said
    starts: dict[bytes, float | None] = {}
    for event in sorted(known, key=lambda event: event.attempt_number):
        if event.HasField("state_updates"):  # else it is of a profile
            began = event.state_updates.state_ts_ns.get(TaskStatus.RUNNING)
            starts[event.task_id] = began / 1e9 if began else None
    return {each: starts[task] for each, task in tasks.items() if task in starts}

"""Tasks of Ray that this engine did not make, waited for with a limit: Ray's own means, as far as they go.

Rules:
1. Running time counts from the start that Ray's state API tells. Where it does not answer (it needs the dashboard) it
   counts from the call.
2. What is late is ended by force at once: a soft cancellation first makes code that holds the GIL unkillable by Ray
   (2.60). A method of an actor cannot be forced: it is asked to end, and given up.
3. Nobody waits for more than `GIVEN_UP_SECONDS` for the end of what was ended.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.messages import TaskRecord
from governor.tasks.errors import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

GIVEN_UP_SECONDS: Final = 5.0
STATE_SECONDS: Final = 2

log = logs.get_logger()


class Foreign:
    """Bare ``ObjectRef`` by name. `timeout`: seconds of running time for each."""

    def __init__(self, references: Mapping[str, Any], timeout: float) -> None:
        self._references = dict(references)
        self._timeout = timeout
        self._called = time.time()
        self._starts: dict[Any, float] = {}
        self._ended: dict[Any, tuple[float, float]] = {}
        """When each was ended, and how long it had been running."""
        self._state_answers = True

    def wait(self, poll_interval: float) -> dict[str, Any]:
        """Returns when all have ended or were given up: their results or exceptions, by name. Looks at their running
        times every `poll_interval` seconds, and when the first may be late: Ray has no event for that.
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
            for reference in list(left):
                if reference not in self._ended:
                    self._end_if_late(reference, now)
                elif now - self._ended[reference][0] >= GIVEN_UP_SECONDS:
                    del left[reference]
        return {name: self._result(name, reference) for name, reference in self._references.items()}

    def _pause(self, left: Collection[Any], poll_interval: float) -> float:
        dues = [
            ended[0] + GIVEN_UP_SECONDS
            if (ended := self._ended.get(reference))
            else self._starts.get(reference, self._called) + self._timeout
            for reference in left
        ]
        until = min((due for due in dues if due > time.time()), default=float("inf")) - time.time()
        return max(min(poll_interval, until), 0.001)

    def _end_if_late(self, reference: Any, now: float) -> None:
        if now - self._starts.get(reference, self._called) <= self._timeout:
            return
        start = self._start(reference)
        if start is None or now - start <= self._timeout:
            return
        import ray  # noqa: PLC0415  # as above

        self._ended[reference] = (now, now - start)
        try:
            ray.cancel(reference, force=True, recursive=False)
        except ValueError:  # a method of an actor
            ray.cancel(reference, force=False)

    def _start(self, reference: Any) -> float | None:
        """When it began, as Ray says now (it may be another attempt); None: it has not. Asked only of those that may be
        late: each answer takes milliseconds.
        """
        if self._state_answers:
            try:
                start = started_at(reference)
            except Exception as error:  # noqa: BLE001  # no dashboard, or it is slow
                self._state_answers = False
                log.debug("ray.state_unknown", reason=f"{type(error).__name__}: {error}")
            else:
                if start is not None:
                    self._starts[reference] = start
                return start
        return self._starts.get(reference, self._called)

    def _result(self, name: str, reference: Any) -> Any:
        import ray  # noqa: PLC0415  # as above

        ended = self._ended.get(reference)
        try:
            result = ray.get(reference, timeout=None if ended is None else 0)
        except Exception as error:  # noqa: BLE001  # that is what the caller asked for
            result = error
        if ended is None or not isinstance(result, Exception):
            return result
        lives = (
            " and can't be ended: it may run on" if isinstance(result, ray.exceptions.GetTimeoutError) else ""
        )
        return TaskFailed(
            TaskRecord(
                task=name,
                run=0,
                outcome="timed_out",
                attempts=1,
                seconds=ended[1],
                error=f"ran longer than its timeout of {self._timeout:g} s{lives}",
            )
        )


def end_of(dependency: Any) -> Future[TaskRecord]:
    """The end of something that a task waits for: an ``ObjectRef``, or any value, which has ended."""
    import ray  # noqa: PLC0415  # heavy

    ended: Future[TaskRecord] = Future()
    if not isinstance(dependency, ray.ObjectRef):
        ended.set_result(TaskRecord(task="", run=0, outcome="succeeded", attempts=0, seconds=0.0))
        return ended
    name = dependency.hex()

    def note(outcome: Future[Any]) -> None:
        error = outcome.exception()
        ended.set_result(
            TaskRecord(
                task=name,
                run=0,
                outcome="succeeded" if error is None else "failed",
                attempts=1,
                seconds=0.0,
                error="" if error is None else f"{type(error).__name__}: {error}",
            )
        )

    dependency.future().add_done_callback(note)
    return ended


def elapsed_of(reference: Any) -> float | None:
    """Seconds since its start; None when it has not begun, or nobody knows."""
    try:
        start = started_at(reference)
    except Exception as error:  # noqa: BLE001  # no dashboard, or it is slow: nobody knows
        log.debug("ray.state_unknown", reason=f"{type(error).__name__}: {error}")
        return None
    return None if start is None else time.time() - start


def started_at(reference: Any) -> float | None:
    """When its last attempt began, in seconds since the epoch, by Ray's state API. Raises many things without it."""
    from ray._private import ray_constants  # noqa: PLC0415  # the caller has it
    from ray.experimental import internal_kv  # noqa: PLC0415  # as above
    from ray.util import state  # noqa: PLC0415  # as above

    # Left to itself, it would wait 40 s for a dashboard, perhaps that of another cluster, and from then on talk to that.
    dashboard = internal_kv._internal_kv_get(  # noqa: SLF001  # its only interface
        ray_constants.DASHBOARD_ADDRESS, namespace=ray_constants.KV_NAMESPACE_DASHBOARD
    )
    if not dashboard:
        raise ConnectionError("this Ray has no dashboard")
    known = state.get_task(
        reference.task_id().hex(),
        address=f"http://{dashboard.decode()}",
        timeout=STATE_SECONDS,
    )
    attempts: list[Any] = known if isinstance(known, list) else [known]
    starts = [float(each.start_time_ms) for each in attempts if getattr(each, "start_time_ms", None)]
    return max(starts) / 1000 if starts else None

"""Tasks of Ray that this engine did not make, waited for with a limit: Ray's own means, as far as they go."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from governor.messages import TaskRecord
from governor.tasks.errors import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping


class Foreign:
    """Bare ``ObjectRef`` by name. `timeout`: seconds of running time for each."""

    def __init__(self, references: Mapping[str, Any], timeout: float) -> None:
        self._references = dict(references)
        self._timeout = timeout
        self._began = time.time()
        self._ended: dict[str, float] = {}

    def wait(self, poll_interval: float) -> dict[str, Any]:
        """Returns when all have ended: their results or exceptions, by name. Looks at their running times every
        `poll_interval` seconds, for Ray has no event for that.
        """
        if not self._references:
            return {}
        import ray  # noqa: PLC0415  # the caller has it

        left = dict(self._references)
        found: dict[str, Any] = {}
        while left:
            _, running = ray.wait(list(left.values()), num_returns=len(left), timeout=poll_interval)
            for name in [name for name, reference in left.items() if reference not in running]:
                found[name] = self._result(name, left.pop(name))
            for name, reference in left.items():
                self._end_if_late(name, reference)
        return found

    def _end_if_late(self, name: str, reference: Any) -> None:
        import ray  # noqa: PLC0415  # as above

        elapsed = self.elapsed_of(reference, time.time(), otherwise=self._began)
        if elapsed is None or elapsed <= self._timeout or name in self._ended:
            return
        self._ended[name] = elapsed
        try:
            # At once by force: a soft cancellation first makes code that holds the GIL unkillable by Ray (2.60).
            ray.cancel(reference, force=True, recursive=False)
        except ValueError:  # a method of an actor can't be forced
            ray.cancel(reference, force=False)

    def _result(self, name: str, reference: Any) -> Any:
        import ray  # noqa: PLC0415  # as above

        try:
            result = ray.get(reference)
        except Exception as error:  # noqa: BLE001  # that is what the caller asked for
            result = error
        if name not in self._ended or not isinstance(result, Exception):
            return result
        return TaskFailed(
            TaskRecord(
                task=name,
                run=0,
                outcome="timed_out",
                attempts=1,
                seconds=self._ended[name],
                error=f"ran longer than its timeout of {self._timeout:g} s",
            )
        )

    @staticmethod
    def elapsed_of(reference: Any, now: float, otherwise: float | None = None) -> float | None:
        """Seconds since its start by Ray's state API; where that does not answer, since `otherwise`."""
        try:
            from ray.util import state  # noqa: PLC0415  # needs Ray's dashboard

            known = state.get_task(reference.task_id().hex(), timeout=2)
        except Exception:  # noqa: BLE001  # no dashboard, or it is slow: nobody knows
            return None if otherwise is None else now - otherwise
        attempts: list[Any] = known if isinstance(known, list) else [known]
        starts = [float(each.start_time_ms) for each in attempts if getattr(each, "start_time_ms", None)]
        return now - max(starts) / 1000 if starts else None

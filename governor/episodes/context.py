"""What an environment or an agent may know of its run, and how it reports: the argument `context` of its constructor.

Rules:
1. It is handed over if the constructor has a parameter of that name and `params` do not: those of the run file win.
2. A report belongs to the episode for which the calling thread runs user code, with `act_many` to each of its episodes. What
   another thread reports belongs to the episode that ends next in this process.
3. A report is a few additions in memory. It is sent with what is sent anyway: the next answer, or the end of the episode.
"""

from __future__ import annotations

import inspect
import logging
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.metrics import Reported, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from governor.episodes.metrics import Sums

NAME = "context"


class Reports:
    """What user code of this process reports. `phase` is the current one."""

    def __init__(self) -> None:
        self.phase = ""
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        self._loose = Reported()

    def bind(self, current: Callable[[], Sequence[tuple[int, Reported]]]) -> None:
        """`current` gives the index and the reports of each episode for which this thread runs user code now."""
        self._of_thread.current = current

    def current(self) -> Sequence[tuple[int, Reported]]:
        current = getattr(self._of_thread, "current", None)
        return () if current is None else current()

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """What user code reports in this thread meanwhile is dropped: it was reported before."""
        before = getattr(self._of_thread, "current", None)
        self.bind(lambda: [(-1, Reported())])
        try:
            yield
        finally:
            self._of_thread.current = before

    def add(
        self, values: Mapping[Any, Any], *, of: str = "context.report", to: Reported | None = None
    ) -> None:
        """Raises TypeError or ValueError, which name the value, for what is no number."""
        if not values:
            return
        numbers = checked(values, of=of)
        found = self.current() if to is None else ((-1, to),)
        with self._lock:
            for _, reported in found or ((-1, self._loose),):
                reported.add(numbers)

    def take(self, reported: Reported | None = None) -> Sums | None:
        """What was reported since the last call, None for nothing; without an argument, by other threads."""
        source = self._loose if reported is None else reported
        if not source.sums:
            return None
        with self._lock:
            return source.take()

    def take_each(self, reported: Mapping[int, Reported]) -> dict[int, Sums]:
        """What was reported of several episodes since the last call, of those with any; what other threads have reported belongs to the
        first one.
        """
        if self._loose.sums and reported:
            self.finish(next(iter(reported.values())))
        found = {key: self.take(one) for key, one in reported.items() if one.sums}
        return {key: sums for key, sums in found.items() if sums is not None}

    def finish(self, reported: Reported) -> None:
        """The episode ends: what other threads have reported belongs to it."""
        if (sums := self.take()) is not None:
            reported.merge(sums)


reports: Final = Reports()
"""Of this process: its environments and agents outlive a phase."""


class Context:
    """Handed to an environment or agent whose constructor has an argument `context`.

    `run_id` is the id of the run, `run_folder` the folder with its files. Lines of `log` are part of the log of the run. What a
    copy of it reports in another process is lost.
    """

    run_id: str
    run_folder: Path
    log: logging.Logger

    def __init__(self, *, run_id: str, run_folder: Path, name: str) -> None:
        """`name` is that of its logger."""
        self.run_id = run_id
        self.run_folder = run_folder
        self.log = logging.getLogger(name)

    @property
    def phase(self) -> str:
        """The name of the current phase; empty before the first one."""
        return reports.phase

    @property
    def episode(self) -> int | None:
        """The index in its phase of the episode for which this thread runs; None outside of one, and in `act_many`."""
        found = reports.current()
        return found[0][0] if len(found) == 1 and found[0][0] >= 0 else None

    def report(self, **values: Any) -> None:
        """Reports numbers, as ``report(loss=0.5)``. An episode has their mean as a figure, and how many were NaN or infinite as
        ``loss.nonfinite``. For any thread.

        Raises:
            TypeError: a value is no number; the message names it.
        """
        reports.add(values)


def with_context(
    factory: Callable[..., Any], params: Mapping[str, Any], context: Context | None
) -> dict[str, Any]:
    """`params`, and `context` if it is handed over (rule 1)."""
    if context is None or NAME in params or not _takes_context(factory):
        return dict(params)
    return {**params, NAME: context}


def _takes_context(factory: Callable[..., Any]) -> bool:
    made = getattr(factory, "makes", None)  # of gymnasium.make
    with suppress(TypeError, ValueError):  # a class that is not written in Python
        parameter = inspect.signature(made() if made is not None else factory).parameters.get(NAME)
        return parameter is not None and parameter.kind in {
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        }
    return False

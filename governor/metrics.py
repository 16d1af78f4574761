"""What the daemon counts, for a monitoring system: declarations, counters, and their text in OpenMetrics and Prometheus form.

Rules:
1. Names as prometheus.io has them: base units, counters end in ``_total``. A family has one label at most, with few values: ids
   of runs are for the log.
2. Counters begin at 0 with the process. What is a state is measured when it is asked for (`Measured`).
3. To count is one addition; nothing here waits or does I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from governor.messages import EpisodeOutcome, RunOutcome, TaskOutcome

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "info"]
Values: TypeAlias = Mapping[str, float]
"""By the value of the label; "" where there is none."""
Measured: TypeAlias = Mapping[str, float | Values]
"""By the name of the family."""
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "run_governor_"
STRETCHES: Final = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Bounds in seconds of the histogram of the event loop."""


@dataclass(frozen=True, slots=True)
class Family:
    """`name` is without prefix and ``_total``; one with a unit ends in it. `values`: those of the label that are shown from the
    start.
    """

    name: str
    kind: Kind
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    unit: str = ""
    prefix: str = PREFIX

    @property
    def full_name(self) -> str:
        return self.prefix + self.name


_STATES: Final = ("queued", "starting", "running", "finalizing", "stopping", "held", "damaged")
COUNTED: Final = (
    Family("runs_accepted", "counter", "Runs that were submitted and are on record."),
    Family("runs_ended", "counter", "Runs that have ended.", "outcome", get_args(RunOutcome)),
    Family("episodes", "counter", "Episodes that have ended.", "outcome", get_args(EpisodeOutcome)),
    Family("episode_steps", "counter", "Steps of episodes that have ended."),
    Family("tasks", "counter", "Runs of tasks that have ended.", "outcome", get_args(TaskOutcome)),
    Family("tokens", "counter", "Tokens of language models, once their phase is over.", "kind", ("prompt", "completion")),
    Family("conductor_restarts", "counter", "Conductors that were started again.", "kind",
           ("environment", "agent", "simulation", "task", "service")),
    Family("kills", "counter", "Signals to conductors that did not end by themselves.", "signal", ("SIGTERM", "SIGKILL")),
)  # fmt: skip
"""By `Metrics`."""
MEASURED: Final = (
    Family("build", "info", "Version of the daemon.", "version"),
    Family("runs", "gauge", "Runs that have not ended, by state.", "state", _STATES),
    Family("runs_stalled", "gauge", "Runs in work without progress for longer than their stall_timeout."),
    Family("oldest_queued_seconds", "gauge", "Age of the first run of the queue; 0 without one.", unit="seconds"),
    Family("slots", "gauge", "Slots for runs.", "state", ("free", "busy", "quarantined")),
    Family("event_loop_busy_seconds", "counter", "Time in which the daemon's event loop was at work.", unit="seconds"),
    Family("event_loop_stretch_seconds", "histogram", "Stretches in which all else waited for the daemon's event loop.",
           unit="seconds"),
    Family("event_loop_longest_stretch_seconds", "gauge", "The longest of them since the start.", unit="seconds"),
    Family("broker_up", "gauge", "Whether the broker has answered."),
    Family("broker_restarts", "counter", "Brokers that were started again."),
    Family("broker_requests", "counter", "Requests of clients."),
    Family("broker_request_bytes", "counter", "Bytes of the requests' bodies.", unit="bytes"),
    Family("broker_reply_bytes", "counter", "Bytes of the replies' bodies.", unit="bytes"),
    Family("broker_queued_requests", "gauge", "Requests that wait for a worker."),
    Family("broker_requests_in_flight", "gauge", "Requests at workers."),
    Family("broker_pending_replies", "gauge", "Messages that slow clients have not taken."),
    Family("broker_connections", "gauge", "Connections of clients and workers."),
    Family("broker_workers", "gauge", "Registered workers."),
    Family("broker_refused", "counter", "What the broker refused or dropped.", "reason",
           ("malformed", "not_permitted", "registration", "connection", "slow_client", "unreachable", "without_envelope")),
    Family("output_lines", "counter", "Lines of user code: written, or beyond their rate.", "fate", ("kept", "dropped")),
    Family("output_dropped_bytes", "counter", "Bytes of user code's output beyond their rate.", unit="bytes"),
    Family("journal_bytes", "gauge", "Size of the journal, with what is not yet in its main file.", unit="bytes"),
    Family("state_free_bytes", "gauge", "Free space on the disk of the state folder.", unit="bytes"),
    Family("cpu_seconds", "counter", "Processor time of the daemon's own process.", unit="seconds", prefix="process_"),
    Family("resident_memory_bytes", "gauge", "Resident memory of the daemon's own process.", unit="bytes", prefix="process_"),
    Family("virtual_memory_bytes", "gauge", "Virtual memory of the daemon's own process.", unit="bytes", prefix="process_"),
    Family("start_time_seconds", "gauge", "When the daemon was started, since the epoch.", unit="seconds", prefix="process_"),
    Family("open_fds", "gauge", "Open files of the daemon's own process.", prefix="process_"),
    Family("max_fds", "gauge", "Limit of its open files.", prefix="process_"),
)  # fmt: skip
"""When they are asked for."""
FAMILIES: Final = (*COUNTED, *MEASURED)


class Metrics:
    """The counters of one daemon. Called in its event loop; `count` from any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, defaultdict[str, float]] = {
            family.name: defaultdict(float, dict.fromkeys(family.values or ("",), 0.0)) for family in COUNTED
        }

    def count(self, name: str, value: str = "", amount: float = 1) -> None:
        """`name` is that of a counter, `value` that of its label."""
        self._counts[name][value] += amount

    def episode_ended(self, outcome: str, steps: int) -> None:
        self._counts["episodes"][outcome] += 1
        self._counts["episode_steps"][""] += steps

    def measured(self) -> dict[str, Values]:
        """What has been counted."""
        return {name: dict(counts) for name, counts in self._counts.items()}


def exposition(measured: Measured, *, open_metrics: bool) -> str:
    """All families with what was `measured`; without a value a family has its head alone."""
    lines: list[str] = []
    for family in FAMILIES:
        name = family.full_name
        total = "_total" if family.kind == "counter" else "_info" if family.kind == "info" else ""
        declared = name if open_metrics else name + total
        kind = family.kind if open_metrics or family.kind != "info" else "gauge"
        lines += [f"# HELP {declared} {family.help}", f"# TYPE {declared} {kind}"]
        if family.unit and open_metrics:
            lines.append(f"# UNIT {declared} {family.unit}")
        found = measured.get(family.name)
        if found is None:
            continue
        values: Values = found if isinstance(found, Mapping) else {"": found}
        if family.kind == "histogram":
            lines += [f"{name}{part} {_number(value)}" for part, value in values.items()]
            continue
        for value, amount in {**dict.fromkeys(family.values, 0.0), **values}.items():
            label = f'{{{family.label}="{_escaped(value)}"}}' if family.label else ""
            lines.append(f"{name}{total}{label} {_number(amount)}")
    return "\n".join([*lines, *(["# EOF"] if open_metrics else []), ""])


def histogram(counts: Mapping[float, int], *, total: float) -> dict[str, float]:
    """The samples of a histogram, from the counts between its bounds; the last bound is inf."""
    samples: dict[str, float] = {}
    below = 0
    for bound, count in counts.items():
        below += count
        samples[f'_bucket{{le="{"+Inf" if bound == float("inf") else bound}"}}'] = below
    return {**samples, "_sum": total, "_count": below}


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

"""The table of a campaign."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

HEAD: Final = """\
# Fault campaign

`make faults` writes this page: it plays real runs, and injects a fault at a random moment of each. `tests/faults/plan.py`
has the kinds of fault, `tests/faults/checks.py` the checks.

* *struck*: the run was active, and the victim existed. *lost*: a client received it or the journal had it, but the journal or the
  result lacks it. *doubled*: an episode or task that was repeated after its end. *orphans*: processes of a run alive after its end,
  of the daemon 3 s after its end, or of a replaced conductor when the next one was ready. *hangs*: runs that did not end within
  two minutes. *other*: any other violation that the checks find.
* The runs' user code - tasks, environment, agent - starts children in other sessions, every second one with an empty
  environment: the search for orphans includes them after every fault.
* *inodes_full*: the state folder has no free inodes. *remove*: the broker's socket files, or the whole runtime folder; a new client
  must be answered within 10 s, by this daemon or the next one. *forge*: messages of the real classes, sent without the secret to
  every socket: a conductor's reports, the daemon's commands, a worker's answers. *flood*: a client sends 100,000 messages and
  reads no answer, opens 1,200 connections, or sends one message of 3,000,000 frames. After faults by clients no record may
  contain their data, no process may have been replaced, and other clients must have been answered within 10 s.
* p50 and p99 are seconds until recovery: another conductor is ready, a task event arrives from Ray, else any event of the run.
  Only the last column includes Ray's own start: of its head, and from the start of the task conductor, which connects to it, to
  the first task event. They count from the fault, or from the start of the next daemon; for a stopped process from its
  detection (by default a conductor and Ray after 10 s, broker and forkserver after 5 s), or from its continuation if it was not
  detected. A dash: the run ended first.
"""

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.faults.ledger import Entry


def table(entries: Iterable[Entry]) -> str:
    """A row for each kind of fault, and one for all. Recovery in seconds, without Ray's own start."""
    kinds: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        kinds[entry.fault].append(entry)
    rows = [_row(kind, kinds[kind]) for kind in sorted(kinds)]
    rows.append(_row("**all**", [entry for kind in kinds.values() for entry in kind]))
    head = (
        *("fault", "runs", "struck", "lost", "doubled", "orphans", "hangs", "other"),
        *("p50 s", "p99 s", "p99 s with Ray"),
    )
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def page(entries: Sequence[Entry], *, seed: int, instances: int) -> str:
    """The document with the table."""
    about = "Nothing was played."
    if entries:
        numbers = f"scenarios {entries[0].number} to {entries[-1].number}"
        hours = sum(entry.seconds for entry in entries) / 3600
        about = (
            f"Seed {seed}, {numbers}; instances side by side: {instances}, cores: {os.cpu_count()}; "
            f"{hours:.1f} hours of runs."
        )
    found = findings(entries)
    list_of_findings = "\n".join(f"* {line}" for line in found) or "Nothing was found."
    return f"{HEAD}\n{about}\n\n{table(entries)}\n## Found\n\n{list_of_findings}\n"


def findings(entries: Iterable[Entry]) -> list[str]:
    """One line for each scenario with a finding."""
    return [
        f"{entry.seed}/{entry.number} {entry.fault}, {entry.run}: {'; '.join(entry.violations)[:600]}"
        for entry in entries
        if entry.violations
    ]


def _row(kind: str, entries: Sequence[Entry]) -> tuple[str, ...]:
    times = sorted(entry.recovery for entry in entries if entry.recovery is not None)
    with_ray = sorted(entry.recovery_with_ray for entry in entries if entry.recovery_with_ray is not None)
    counted = sum(entry.lost + entry.doubled + entry.orphans + entry.hangs for entry in entries)
    other = sum(len(entry.violations) for entry in entries) - counted
    figures = (
        len(entries),
        sum(not entry.skipped for entry in entries),
        sum(entry.lost for entry in entries),
        sum(entry.doubled for entry in entries),
        sum(entry.orphans for entry in entries),
        sum(entry.hangs for entry in entries),
        other,
    )
    return (kind, *map(str, figures), _part(times, 0.5), _part(times, 0.99), _part(with_ray, 0.99))


def _part(times: Sequence[float], part: float) -> str:
    return f"{times[min(int(part * len(times)), len(times) - 1)]:.2f}" if times else "-"

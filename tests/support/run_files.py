"""A run file with every section, for tests that change one word of it; and the faults of one, by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.run_file import check, entry_check

if TYPE_CHECKING:
    from governor.units.sections import Path

GOOD = """\
name: frozen-lake
seed: 7
conductors:
  environments:
    lake: {entry: "gymnasium:FrozenLake-v1", params: {is_slippery: false}, pool: 4}
  agents:
    walker: {entry: "q_learner:QLearner", params: {alpha: 0.5}}
phases:
  - name: train
    simulate: {environment: lake, agents: [walker], episodes: 400, workers: 2, episode_timeout: 1min}
    until: [{metric: return, average_over: 50, at_least: 0.95}]
  - name: analyse
    on_failure: continue
    tasks:
      - {id: load, call: "analysis:load", timeout: 30s}
      - {id: fit, call: "analysis:fit", depends_on: [load], repeat: 8, timeout: 60s, retries: 1, resources: {cpus: 1}}
limits: {wall_clock: 15min}
"""


def faults_in(data: object) -> list[tuple[Path, str]]:
    """All faults of a run given as plain data."""
    return check.examine(data)[1]


def verdicts(folder, *targets, kind="task", seconds=20.0):
    """The faults of these entries, by target."""
    asked = [
        entry_check.UserEntry(place=(number, target), kind=kind, target=target)
        for number, target in enumerate(targets)
    ]
    return {
        place[1]: said for place, said in entry_check.faults(asked, folder=folder, import_seconds=seconds)
    }

"""Which fault strikes which run, and when: a scenario is a function of the campaign's seed and its number alone.

So any range can be played again, and a scenario with a finding can be repeated by its number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

CONDUCTORS: Final = ("environment", "agent", "simulation", "tasks")
WORLD: Final = "environment_process"
"""The process of an environment, below its conductor."""
RAY: Final = ("ray_worker", "raylet", "gcs_server", "ray_head")
INSTANCE: Final = ("guard", "daemon", "broker", "forkserver")

RUNS: Final = {
    "simulation": frozenset({"environment", WORLD, "agent", "simulation"}),
    "in_process": frozenset({"simulation"}),
    "tasks": frozenset({"tasks", *RAY}),
    "both": frozenset({*CONDUCTORS, WORLD, *RAY}),
}
"""Each kind of run, and its processes besides those of the instance."""

MOMENTS: Final = {"simulation": 80, "in_process": 80, "tasks": 40, "both": 80}
"""The last event of each that is a moment to strike: most have about 145, ``tasks`` 52, ``both`` 180, the tasks' first."""

FORGED: Final = ("reports", "commands", "answers")
"""Messages from a process without a secret: as a conductor, as the daemon, as a worker of the services of both."""
FLOODS: Final = ("messages", "connections", "frames")
"""The kinds of flood that a client sends."""
BY_CLIENTS: Final = frozenset({"forge", "flood"})
"""Faults by clients must have no effect: no process of the instance is replaced, and every other client is answered."""

SHORT: Final = (0.2, 1.5)
"""Seconds of a stop that is shorter than every liveness deadline."""
LONG: Final = (12.0, 16.0)
"""Seconds of a stop that is longer than every liveness deadline."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`action` on `victim`; see `faults.strike`."""

    action: str
    victim: str = ""

    @property
    def name(self) -> str:
        return f"{self.action} {self.victim}".strip()


@dataclass(frozen=True, slots=True)
class Scenario:
    """The fault strikes `jitter` seconds after event `after` of the run or, if its victim is a state, after the run enters it.
    `hold`: duration of the fault in seconds.
    """

    seed: int
    number: int
    run: str
    fault: Fault
    after: int
    jitter: float
    hold: float
    run_seed: int


KINDS: Final = (
    *(
        Fault(action, victim)
        for action in ("kill", "stop_short", "stop_long")
        for victim in (*INSTANCE, *CONDUCTORS, WORLD, *RAY)
    ),
    *(Fault("term", state) for state in ("pristine", "starting", "running", "finalizing", "stopping")),
    Fault("submit_killed"),
    Fault("watch_killed"),
    Fault("disk_full"),
    Fault("clock"),
    Fault("no_files"),
    Fault("steer"),
    Fault("kill", "guards"),
    Fault("inodes_full"),
    *(Fault("remove", what) for what in ("sockets", "runtime")),
    *(Fault("forge", what) for what in FORGED),
    *(Fault("flood", what) for what in FLOODS),
)


SHORT_FORM: Final = (
    ("disk_full", "in_process"),
    ("inodes_full", "in_process"),
    ("kill tasks", "both"),
    ("stop_long environment", "simulation"),
    (f"kill {WORLD}", "simulation"),
    ("kill daemon", "simulation"),
    ("kill guards", "in_process"),
    ("kill broker", "simulation"),
    ("kill agent", "simulation"),
    ("kill simulation", "in_process"),
    ("term running", "simulation"),
    ("term finalizing", "in_process"),
    ("submit_killed", "in_process"),
    ("watch_killed", "in_process"),
    ("no_files", "simulation"),
    ("steer", "simulation"),
    ("forge reports", "simulation"),
    ("flood connections", "in_process"),
    ("remove sockets", "in_process"),
)
"""The faults of the test, with the runs that they strike. Faults that need an instance of their own come first, then the
longest, so that two instances are busy until the end.
"""


def short_form(seed: int) -> list[Scenario]:
    """Scenarios in the order of `SHORT_FORM`; the seed gives the moments."""
    kinds = {fault.name: fault for fault in KINDS}
    return [
        replace(scenario(seed, number), fault=kinds[name], run=run, hold=_hold(kinds[name], seed, number))
        for number, (name, run) in enumerate(SHORT_FORM)
    ]


def _hold(fault: Fault, seed: int, number: int) -> float:
    chance = random.Random(f"{seed}/{number}/hold")  # not for secrets
    return chance.uniform(*(LONG if fault.action == "stop_long" else SHORT))


def scenario(seed: int, number: int) -> Scenario:
    """The kinds come in turn, so that each part of a campaign has about the same number of each."""
    chance = random.Random(f"{seed}/{number}")  # not for secrets
    turn, place = divmod(number, len(KINDS))
    order = list(KINDS)
    random.Random(f"{seed}/turn {turn}").shuffle(order)  # as above
    fault = order[place]
    fitting = [name for name, works in RUNS.items() if fault.victim in works]
    run = chance.choice(fitting or sorted(RUNS))
    return Scenario(
        seed=seed,
        number=number,
        run=run,
        fault=fault,
        after=chance.randint(1, MOMENTS[run]),
        jitter=chance.random() * 0.2,
        hold=_hold(fault, seed, number),
        run_seed=chance.randrange(2**16),
    )

"""What is done to which run, when: scenario `number` of a campaign is a function of its seed and number alone.

So any range can be played again by itself, and a scenario that found something is found again by its number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

CONDUCTORS: Final = ("environment", "agent", "simulation", "tasks")
RAY: Final = ("ray_worker", "raylet", "gcs_server", "ray_head")
INSTANCE: Final = ("guard", "daemon", "broker", "forkserver")

RUNS: Final = {
    "simulation": frozenset({"environment", "agent", "simulation"}),
    "in_process": frozenset({"simulation"}),
    "tasks": frozenset({"tasks", *RAY}),
    "both": frozenset({*CONDUCTORS, *RAY}),
}
"""Each kind of run, and who works for it besides the house."""

MOMENTS: Final = {"simulation": 80, "in_process": 80, "tasks": 40, "both": 80}
"""The last event of each that is a moment to strike: most have about 145, ``tasks`` 52, ``both`` 180, the tasks' first."""

FORGED: Final = ("reports", "commands", "answers")
"""What somebody without a secret sends: as a conductor, as the daemon to one, and as a worker of either's service."""
FLOODS: Final = ("messages", "connections", "frames")
"""What a client sends too many of."""
BY_CLIENTS: Final = frozenset({"forge", "flood"})
"""What clients do must harm nobody: no process of the house is replaced after it, and every client is answered."""

SHORT: Final = (0.2, 1.5)
"""Seconds that a process is stopped for less than anybody may take it for dead."""
LONG: Final = (12.0, 16.0)
"""And for longer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`action` on `victim`: what of it there is, and what each does, is in `faults.strike`."""

    action: str
    victim: str = ""

    @property
    def name(self) -> str:
        return f"{self.action} {self.victim}".strip()


@dataclass(frozen=True, slots=True)
class Scenario:
    """After event `after` of the run, and `jitter` seconds more. `hold`: how long what is held stays so. For a fault whose
    victim is a state, when the run is in it.
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
        for victim in (*INSTANCE, *CONDUCTORS, *RAY)
    ),
    *(Fault("term", state) for state in ("pristine", "starting", "running", "finalizing", "stopping")),
    Fault("submit_killed"),
    Fault("watch_killed"),
    Fault("disk_full"),
    Fault("clock"),
    Fault("no_files"),
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
    ("forge reports", "simulation"),
    ("flood connections", "in_process"),
    ("remove sockets", "in_process"),
)
"""Faults by their names, and the runs that they strike: what a test plays. Those that need a house of their own come first, then
the longest, so that two houses are busy until the end.
"""


def short_form(seed: int) -> list[Scenario]:
    """In the order of `SHORT_FORM`, each at a moment of its seed."""
    kinds = {fault.name: fault for fault in KINDS}
    return [
        replace(scenario(seed, number), fault=kinds[name], run=run, hold=_hold(kinds[name], seed, number))
        for number, (name, run) in enumerate(SHORT_FORM)
    ]


def _hold(fault: Fault, seed: int, number: int) -> float:
    chance = random.Random(f"{seed}/{number}/hold")  # no secret
    return chance.uniform(*(LONG if fault.action == "stop_long" else SHORT))


def scenario(seed: int, number: int) -> Scenario:
    """The kinds come in turn, so that any stretch of a campaign has about as many of each."""
    chance = random.Random(f"{seed}/{number}")  # no secret
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

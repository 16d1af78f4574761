"""The life of a run, pure: `advance(state, event)` returns the next state and the effects to perform.

No clock, socket, await, log or random number is in here; time is part of events. `governor.runs.effects` performs the
effects; `governor.runs.run_governor` runs the machine.
"""

from states.base import Dropped, Rejected, State, Step
from states.finalizing import Finalizing
from states.pristine import Pristine
from states.running import Running
from states.starting import Starting
from states.stopping import Stopping
from states.table import TABLE, advance

__all__ = [
    "TABLE",
    "Dropped",
    "Finalizing",
    "Pristine",
    "Rejected",
    "Running",
    "Starting",
    "State",
    "Step",
    "Stopping",
    "advance",
]

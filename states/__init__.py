"""The life of a run, pure: `advance(state, event)` gives the next state and the effects to be performed.

No clock, socket, await, log or random number is in here; time arrives inside events. What performs the effects is
`governor.runs.effects`; what runs the machine is `governor.runs.run_governor`.
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

"""Errors of the state machine: only its own faults. Faults of the outside world are events, refused commands are
answers (`Rejected`).
"""


class StateMachineError(Exception):
    """Root."""


class UndeclaredTransition(StateMachineError):
    """A handler led to a state that its row of the table does not name: a bug of the machine."""

    def __init__(self, source: str, event: str, target: str) -> None:
        self.source = source
        self.event = event
        self.target = target
        super().__init__(f"{source} answered {event} with {target}, which the table does not declare")

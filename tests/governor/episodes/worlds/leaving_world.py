"""Environments and agents that exit or hang where they begin, are saved, or are closed."""

import threading
from pathlib import Path

from walk_world import Agent, Walk


class Exits(Walk):
    """The process, if it could: where `at` says."""

    def __init__(self, *, at, **more):
        super().__init__(**more)
        if at == "begin":
            raise SystemExit("no licence")

    def close(self):
        raise SystemExit("good bye")


class Closes(Walk):
    """And says so."""

    def __init__(self, *, path):
        super().__init__()
        self.path = Path(path)

    def close(self):
        self.path.touch()


class ExitingAgent(Agent):
    def __init__(self, *, fault, **more):
        super().__init__(**more)
        self.fault = fault
        if fault == "begin":
            raise SystemExit("no licence")

    def state_dict(self):
        if self.fault == "state":
            raise SystemExit("no disk")
        return super().state_dict()

    def load_state_dict(self, state):
        raise SystemExit("no such state")


class NeverCloses(Walk):
    def close(self):
        threading.Event().wait()

"""The life of a runner, as its driver sees it: states, causes of its end, and one table. No sockets, processes, clocks.

Rules:
1. Whatever ends a runner is a `Cause`. A cause that a state does not list has no effect: what follows an end is on its way.
2. A runner is announced as gone once: every way out of `TABLE` leads to GONE, and nothing leads out of GONE.
3. A runner that has tasks on it, and how long they may take, is the business of `scheduling`; here it is connected.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class RunnerState(Enum):
    STARTING = auto()
    """Ray was asked for its actor; no process is known."""
    LOCAL = auto()
    """Connected, on this machine: the exit of its process is seen at once."""
    CUT_OFF = auto()
    """As LOCAL, but its stream has ended: its process exits next, or it is of no use."""
    REMOTE = auto()
    """Connected, on another node: its end is that of its stream, of its one Ray call, or of its node."""
    DYING = auto()
    """It is being killed, or what it has left behind is."""
    GONE = auto()
    """It has exited, or works for this driver no more."""


class Cause(Enum):
    NOT_CREATED = auto()
    """Ray refused to create its actor."""
    KILLED = auto()
    """It is to be killed."""
    DISMISSED = auto()
    """It is idle, and not needed any more."""
    KEPT = auto()
    """It is idle, and kept for the next driver of this process."""
    NOT_BACK = auto()
    """It was kept, and has not connected in time, or its code is stale."""
    EXITED = auto()
    """Its process on this machine has exited."""
    STREAM_ENDED = auto()
    CALL_ENDED = auto()
    """Its one Ray call has ended, or its node is lost."""
    STILL_RUNNING = auto()
    """Its process still runs a while after the end of its stream."""
    TASK_FAILED = auto()
    """An asyncio task that works for it has failed."""
    CLEANED_UP = auto()
    """All that could be killed of it has exited, or the search for it has failed."""


class Action(Enum):
    NONE = auto()
    WAIT_FOR_EXIT = auto()
    KILL = auto()
    """Kills its process and all that its tasks have started."""
    DISMISS = auto()
    """As KILL, but Ray ends its process: Ray tells of no death then."""
    CLEAN_UP = auto()
    """It has exited by itself: finds out why, and kills what it has left behind."""
    ANNOUNCE = auto()


Step: TypeAlias = tuple[RunnerState, Action]

_KILL: Final[Step] = (RunnerState.DYING, Action.KILL)
_DISMISS: Final[Step] = (RunnerState.DYING, Action.DISMISS)
_CLEAN_UP: Final[Step] = (RunnerState.DYING, Action.CLEAN_UP)
_ANNOUNCE: Final[Step] = (RunnerState.GONE, Action.ANNOUNCE)
_UNWANTED: Final[Mapping[Cause, Step]] = {
    Cause.KILLED: _KILL,
    Cause.TASK_FAILED: _KILL,
    Cause.DISMISSED: _DISMISS,
}

TABLE: Final[Mapping[RunnerState, Mapping[Cause, Step]]] = {
    RunnerState.STARTING: {
        **_UNWANTED,
        Cause.NOT_BACK: _DISMISS,
        Cause.NOT_CREATED: _ANNOUNCE,
        Cause.EXITED: _CLEAN_UP,
        Cause.CALL_ENDED: _CLEAN_UP,
    },
    RunnerState.LOCAL: {
        **_UNWANTED,
        Cause.KEPT: _ANNOUNCE,
        Cause.EXITED: _CLEAN_UP,
        Cause.STREAM_ENDED: (RunnerState.CUT_OFF, Action.WAIT_FOR_EXIT),
    },
    RunnerState.CUT_OFF: {**_UNWANTED, Cause.EXITED: _CLEAN_UP, Cause.STILL_RUNNING: _KILL},
    RunnerState.REMOTE: {**_UNWANTED, Cause.STREAM_ENDED: _CLEAN_UP, Cause.CALL_ENDED: _CLEAN_UP},
    RunnerState.DYING: {Cause.NOT_CREATED: _ANNOUNCE, Cause.CLEANED_UP: _ANNOUNCE},
    RunnerState.GONE: {},
}


def step(state: RunnerState, cause: Cause) -> Step:
    """The state after a cause, and what is to be done."""
    return TABLE[state].get(cause, (state, Action.NONE))

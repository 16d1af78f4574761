"""The base of all messages: their root type, literal types, the names of services, the plain answers."""

from __future__ import annotations

import re
import sys
from typing import Final, Literal, TypeAlias

import msgspec

# Some are those of the state machine, which takes 60 ms to import: clients, conductors and runners have no other use for it.
ConductorKind: TypeAlias = Literal["environment", "agent", "simulation", "task", "service"]
RunOutcome: TypeAlias = Literal["finished", "failed", "aborted"]
TaskOutcome: TypeAlias = Literal[
    "succeeded", "failed", "timed_out", "crashed", "upstream_failed", "cancelled"
]
EpisodeOutcome: TypeAlias = Literal["terminated", "truncated", "failed", "timed_out", "crashed", "cancelled"]
COMPLETE: Final = frozenset[EpisodeOutcome]({"terminated", "truncated"})
"""Outcomes of episodes that ended by themselves."""
BAD: Final = frozenset[EpisodeOutcome]({"failed", "timed_out", "crashed"})
BAD_TASKS: Final = frozenset[TaskOutcome]({"failed", "timed_out", "crashed"})
"""Outcomes of tasks that are failures of their own: others follow from these, or from a decision."""
FailureKind: TypeAlias = Literal["user", "infrastructure", "time", "model", "limit"]
Part: TypeAlias = Literal["simulation", "tasks"]
WorkChange: TypeAlias = Literal["cancel", "requeue"]
FlowControl: TypeAlias = Literal[
    "CONTINUE", "PAUSE", "RESET", "RESTART", "STOP_SIMULATION", "STOP_PHASE", "SHUTDOWN"
]

SERVICE: Final = "governor"


def run_service(uid: str) -> str:
    """The service to which the conductors of run `uid` report their events."""
    return f"run.{uid}"


def conductor_service(uid: str, name: str, incarnation: int) -> str:
    """The service of one incarnation of the conductor `name` of run `uid`: its commands never reach its successor."""
    return f"conductor.{uid}.{name}.{incarnation}"


def task_and_run(label: str) -> tuple[str, int | None]:
    """The id and the number in ``fit[2]``, as tables name a run of a task that repeats; for another text that text, and None."""
    found = re.fullmatch(r"([^\[\]]+)\[(0|[1-9][0-9]{0,17})\]", label)
    return (label, None) if found is None else (found[1], int(found[2]))


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type", gc=False):
    """Root of all messages."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a run file. `path` is like ``phases[1].tasks[0].timeout``; `line` counts from 1."""

    path: str
    message: str
    line: int | None = None


class Refused(Message, frozen=True):
    """The answer to a command that changed nothing. `exit_code` is what the command line ends with."""

    code: str
    message: str
    exit_code: int
    faults: tuple[Fault, ...] = ()


class Done(Message, frozen=True):
    """The command was accepted; its end is an event of the run."""


def plain(value: object) -> object:
    """A section of the run file as plain data; without pydantic there is none. A kind of text as a text. Raises TypeError."""
    if isinstance(value, str):
        return str(value)
    sections = sys.modules.get("governor.units.sections")
    if sections is None or not isinstance(value, sections.Section):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return vars(value)


encode = msgspec.msgpack.Encoder(enc_hook=plain).encode

"""The control plane of episodes: leases of environments and seats at agents, through the broker.

Rules:
1. All of it is rare: once for each worker of a phase, and once more after a fault. Steps go over the direct endpoint
   that the answer names (`wire`).
2. `Acquire` and `Join` are idempotent by (owner, incarnation, worker, turn): asked again, the answer is the same lease
   or seat.
3. A worker holds one lease and one seat: what it held in an earlier turn, and what an older incarnation of its owner
   held, is taken back when it asks anew.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from governor.episodes.spaces import SpaceSpec  # noqa: TC001  # msgspec reads it at run time


def environment_service(uid: str, name: str) -> str:
    """`name` is the plain name of the run file, as ``lake``."""
    return f"environment.{uid}.{name}"


def agent_service(uid: str, name: str) -> str:
    return f"agent.{uid}.{name}"


class Control(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """Root of the control plane."""


class Acquire(Control, frozen=True):
    """Asks for an environment of the pool. `owner` is a simulation controller, `turn` counts its worker's tries."""

    owner: str
    incarnation: int
    worker: int
    turn: int


class Leased(Control, frozen=True):
    """One environment, reset and stepped at `endpoint` under the routing id `lease` until `Release`."""

    lease: str
    endpoint: str
    observation_space: SpaceSpec
    action_space: SpaceSpec


class Busy(Control, frozen=True):
    """Each of the `pool` environments is leased; asking again helps after a release."""

    pool: int


class Release(Control, frozen=True):
    """Gives a lease back. With `renew` the environment is built anew; `hung` says why it did not answer any more, so
    that it is abandoned and another one takes its place. Of a vector `due` are the slots whose time is up: only if it is
    in the code of one of them, else it is `NotDue`.
    """

    lease: str
    renew: bool = False
    hung: str = ""
    due: tuple[int, ...] = ()


class Join(Control, frozen=True):
    """Asks for a seat at the agent, which is built at the first one. With `renew` it is built anew, from its saved
    state. With `max_staleness` it acts with a snapshot of its weights, so many versions behind at most (`brain`).
    """

    owner: str
    incarnation: int
    worker: int
    turn: int
    observation_space: SpaceSpec
    action_space: SpaceSpec
    renew: bool = False
    max_staleness: int = 0


class Joined(Control, frozen=True):
    """Act and learn at `endpoint` under the routing id `seat`."""

    seat: str
    endpoint: str


class Stuck(Control, frozen=True):
    """The agent did not answer request `number` of this seat by its deadline. If it is still at it, it hangs; `due` is as
    that of `Release`.
    """

    seat: str
    number: int
    due: tuple[int, ...] = ()


class Copy(Control, frozen=True):
    """The agent's state as it is now is to be at `path`."""

    path: str


class Taken(Control, frozen=True):
    """Answer to `Release`, `Stuck` and `Copy`. `slot` is the one of a vector in whose code what hangs is, if it is known."""

    slot: int | None = None


class NotDue(Control, frozen=True):
    """Answer to `Release` and `Stuck`: nothing was done, it is at something whose time is not up."""


class Failed(Control, frozen=True):
    """It cannot be done, and asking again will not help; `reason` is one line."""

    reason: str


EnvironmentControl: TypeAlias = Acquire | Release
AgentControl: TypeAlias = Join | Stuck | Copy
ControlAnswer: TypeAlias = Leased | Busy | Joined | Taken | NotDue | Failed

encode = msgspec.msgpack.Encoder().encode
_environment: msgspec.msgpack.Decoder[EnvironmentControl] = msgspec.msgpack.Decoder(EnvironmentControl)
_agent: msgspec.msgpack.Decoder[AgentControl] = msgspec.msgpack.Decoder(AgentControl)
_answer: msgspec.msgpack.Decoder[ControlAnswer] = msgspec.msgpack.Decoder(ControlAnswer)
decode_environment_control = _environment.decode
decode_agent_control = _agent.decode
decode_answer = _answer.decode

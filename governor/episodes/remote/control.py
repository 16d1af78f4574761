"""The control plane of episodes: leases of environments and sessions with agents, through the broker.

Rules:
1. These messages are rare: one for each worker of a phase, and one more after a fault. Steps go over the direct endpoint
   in the answer (`wire`).
2. `Acquire` and `Join` are idempotent by (owner, incarnation, worker, turn): a repeated request gets the same lease or
   session.
3. A worker holds one lease and one session: a new request ends those of an earlier turn and of an older incarnation of
   its owner. A request that arrives after a later one is refused.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from governor.episodes.restoring.so_far import PhaseSoFar  # noqa: TC001  # msgspec reads it at run time
from governor.episodes.spaces import SpaceSpec  # noqa: TC001  # likewise
from governor.failures import Reason, reason_of
from transport.errors import ConnectionLost, ServiceNotFound, WorkerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transport.client import Client

UNAVAILABLE = (ServiceNotFound, WorkerLost, ConnectionLost)
"""Errors of a request to a conductor that is being restarted."""


def environment_service(uid: str, name: str) -> str:
    """`name` is the plain name of the run file, as ``lake``."""
    return f"environment.{uid}.{name}"


def agent_service(uid: str, name: str) -> str:
    return f"agent.{uid}.{name}"


class Control(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """Root of the control plane."""


class TurnRequest(Control, frozen=True):
    """A request of a worker. `owner` is its simulation controller, `turn` counts the requests of the owner's workers."""

    owner: str
    incarnation: int
    worker: int
    turn: int


class Acquire(TurnRequest, frozen=True):
    """Requests an environment of the pool."""


class Leased(Control, frozen=True):
    """One environment, reset and stepped at `endpoint` under the routing id `lease` until `Release`.

    `players` are the spaces of each of several players, of observations and actions; then the two spaces are those of the first.
    `turns`: its players take turns.
    """

    lease: str
    endpoint: str
    observation_space: SpaceSpec
    action_space: SpaceSpec
    players: dict[str, tuple[SpaceSpec, SpaceSpec]] = {}
    turns: bool = False


class Busy(Control, frozen=True):
    """All `pool` environments are leased; a request after a release may succeed."""

    pool: int


class Release(Control, frozen=True):
    """Ends a lease. With `renew` the environment is built anew; `hung` is the reason why it did not answer, for an environment
    that is to be killed and replaced; `lost`: its process has ended the connection. `due` are the slots of a vector whose deadline has passed: the release takes effect
    only if the vector runs the code of one of them, else the answer is `NotExpired`.
    """

    lease: str
    renew: bool = False
    hung: str = ""
    lost: bool = False
    due: tuple[int, ...] = ()


class Join(TurnRequest, frozen=True):
    """Requests a session with the agent, which is built at the first one. With `max_staleness` it acts with a snapshot of its
    weights, at most so many versions old (`agent_runtime`). `workers` are the streams of steps of the phase; it
    `trains` the agent. `seed` is what it is built with; None: that of the run. `so_far`: what it is to have learned
    of the phase with the number `phase`.
    """

    observation_space: SpaceSpec
    action_space: SpaceSpec
    max_staleness: int = 0
    workers: int = 1
    trains: bool = False
    seed: int | None = None
    phase: int = -1
    so_far: PhaseSoFar | None = None


class Restoring(Control, frozen=True):
    """Answer to `Join` and `Copy`: the agent learns again what is on record, so many `steps` by now; ask again."""

    steps: int


class Joined(Control, frozen=True):
    """Act and learn at `endpoint` with the identity `session`. The agent `needs_info`: the whole infos of the environment; `hears_ends`:
    it wants to know how each episode ended; `masked`: it takes action masks.
    """

    session: str
    endpoint: str
    needs_info: bool = False
    hears_ends: bool = False
    masked: bool = False


class ReportHang(Control, frozen=True):
    """The agent did not answer request `number` of this session by its deadline. If it still works on it, it hangs; `due` as in
    `Release`.
    """

    session: str
    number: int
    due: tuple[int, ...] = ()


class Copy(Control, frozen=True):
    """Writes the agent's current state to `path`. An agent that is not built yet learns again what is on record first, as `join` says:
    its saved state may be older, or none.
    """

    path: str
    join: Join | None = None


class Accepted(Control, frozen=True):
    """Answer to `Release`, `ReportHang` and `Copy`. `slot` is the slot of a vector whose code hangs, if known; `stack`: where the
    code that hangs is, with its place as of a reason; how a process has ended that was `lost`.
    """

    slot: int | None = None
    place: str = ""
    stack: str = ""


class NotExpired(Control, frozen=True):
    """Answer to `Release` and `ReportHang`: nothing was done, because the code that runs has time left."""


class Failed(Control, frozen=True):
    """The request cannot succeed, and repeating it does not help; `reason` is one line, `traceback` that of user code."""

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        reason = reason_of(error)
        return cls(reason=str(reason), traceback=reason.traceback)

    @property
    def why(self) -> Reason:
        return Reason(self.reason, self.traceback)


EnvironmentControl: TypeAlias = Acquire | Release
AgentControl: TypeAlias = Join | ReportHang | Copy
ControlAnswer: TypeAlias = Leased | Busy | Joined | Restoring | Accepted | NotExpired | Failed

encode = msgspec.msgpack.Encoder().encode
decode_environment_control: Callable[[bytes], EnvironmentControl] = msgspec.msgpack.Decoder(
    EnvironmentControl
).decode
decode_agent_control: Callable[[bytes], AgentControl] = msgspec.msgpack.Decoder(AgentControl).decode
decode_answer: Callable[[bytes], ControlAnswer] = msgspec.msgpack.Decoder(ControlAnswer).decode


def supersedes(request: TurnRequest, held: TurnRequest) -> bool:
    """Whether the request is from a later turn or incarnation of the holder."""
    if request.owner != held.owner:
        return False
    if request.incarnation != held.incarnation:
        return request.incarnation > held.incarnation
    return request.worker == held.worker and request.turn > held.turn


def refusal(request: TurnRequest, held: Iterable[TurnRequest]) -> Failed | None:
    """The answer to a request that arrives after a later one of its worker or owner."""
    if any(supersedes(later, request) for later in held):
        return Failed(reason=f"{request.owner!r} has sent a later request already")
    return None


async def ask(client: Client, service: str, message: Control, *, seconds: float) -> ControlAnswer:
    """Raises RequestError."""
    body = await client.request(service, encode(message), timeout=max(seconds, 0.1), idempotent=True)
    return decode_answer(body[0])


async def ask_when_available(
    client: Client, service: str, message: Control, *, seconds: float
) -> ControlAnswer:
    """Repeats the request while the conductor is unavailable, for so many `seconds`, and while it restores its agent; raises its last
    RequestError.
    """
    deadline = monotonic() + seconds
    replayed = -1
    while True:
        try:
            answer = await ask(client, service, message, seconds=deadline - monotonic())
            if not isinstance(answer, Restoring):
                return answer
            if answer.steps != replayed:
                deadline, replayed = monotonic() + seconds, answer.steps
        except UNAVAILABLE:
            if monotonic() >= deadline:
                raise

"""The messages between a conductor and the process of one environment, on the socket that both have from the start.

Rules:
1. The conductor asks, one request at a time (`Lend`, `Look`, `Renew`), and each has one answer, `Seen`. The end of the stream tells the
   process to close its environment and to exit.
2. The process begins with `Built`, or with `Ending` where the environment cannot be built; so it is after `Renew`. `Ending` says
   later why the process ends.
3. They are answered beside the thread of user code, also while that hangs; not while it holds Python's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from governor.episodes.spaces import SpaceSpec  # noqa: TC001  # msgspec reads it at run time
from governor.failures import Reason
from governor.messages import ConductorSpec  # noqa: TC001  # likewise

if TYPE_CHECKING:
    from collections.abc import Callable


ALL_SLOTS: Final = -1
"""The slot of code that is that of all environments of a vector."""


class EnvironmentMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """Root of these messages."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the process begins with: the spec of its conductor, the name of its environment, and the path of its direct socket."""

    spec: ConductorSpec
    name: str
    path: str


class Lend(EnvironmentMessage, frozen=True):
    """From now on the environment is reset and stepped under the identity `lease`; by nobody if it is empty."""

    lease: str = ""


class Look(EnvironmentMessage, frozen=True):
    """Where is the code?"""


class Renew(EnvironmentMessage, frozen=True):
    """Build the environment anew. It is closed when this is answered."""


class Seen(EnvironmentMessage, frozen=True):
    """Answer to a request: the slot whose code runs, None between two requests; to `Look` also the `place` of that code, as it is
    put behind a reason, and its `stack`.
    """

    slot: int | None = None
    place: str = ""
    stack: str = ""


class Built(EnvironmentMessage, frozen=True):
    """The environment is served. As in `control.Leased`."""

    observation_space: SpaceSpec
    action_space: SpaceSpec
    players: dict[str, tuple[SpaceSpec, SpaceSpec]] = {}
    turns: bool = False


class Ending(EnvironmentMessage, frozen=True):
    """Why the process will exit: one line, with the traceback of user code if that has raised."""

    reason: str
    traceback: str = ""

    @property
    def why(self) -> Reason:
        return Reason(self.reason, self.traceback)


Request: TypeAlias = Lend | Look | Renew
FromProcess: TypeAlias = Seen | Built | Ending

encode = msgspec.msgpack.Encoder().encode
decode_order: Callable[[bytes], Order] = msgspec.msgpack.Decoder(Order).decode
decode_request: Callable[[bytes | memoryview], Request] = msgspec.msgpack.Decoder(Request).decode
decode_message: Callable[[bytes | memoryview], FromProcess] = msgspec.msgpack.Decoder(FromProcess).decode

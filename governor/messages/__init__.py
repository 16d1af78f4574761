"""Messages between executor, daemon and conductors: msgspec Structs in msgpack, tagged by type.

Rules:
1. Nothing here is ever unpickled. A frame decodes into one of the types of its union, or it is a bad request.
2. Durations are in seconds, ``at`` is wall-clock time (seconds since the epoch) for records only.
3. A type belongs to one union: requests of an executor, replies of the daemon, reports of a conductor, commands to a
   conductor. Frames are decoded with `decode_*` only.
4. Commands need pydantic and are loaded on first use: clients have none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from governor.messages.base import *
from governor.messages.conductor import *
from governor.messages.executor import *
from governor.messages.groups import *
from governor.messages.output import *
from governor.messages.results import *
from governor.messages.status import *

if TYPE_CHECKING:
    from governor.messages.commands import *
else:

    def __getattr__(name: str) -> object:
        return getattr(import_module("governor.messages.commands"), name)

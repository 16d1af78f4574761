"""Messages between executor, daemon and conductors: msgspec Structs in msgpack, tagged by type.

Rules:
1. Nothing here is ever unpickled. A frame decodes into one of the types of its union, or it is a bad request.
2. Durations are in seconds, ``at`` is wall-clock time (seconds since the epoch) for records only.
3. A type belongs to one union: requests of an executor, replies of the daemon, reports of a conductor, commands to a
   conductor. Frames are decoded with `decode_*` only.
4. What an executor says is loaded on first use, as runners have no use for it; so are commands, which need pydantic: clients have none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from governor.messages.base import *
from governor.messages.conductor import *
from governor.messages.files import *
from governor.messages.groups import *
from governor.messages.output import *
from governor.messages.results import *
from governor.messages.status import *

if TYPE_CHECKING:
    from governor.messages.commands import *
    from governor.messages.executor import *
else:

    def __getattr__(name: str) -> object:
        executor = import_module("governor.messages.executor")
        if name in vars(executor):
            return getattr(executor, name)
        return getattr(import_module("governor.messages.commands"), name)

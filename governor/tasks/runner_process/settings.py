"""What a new runner works with. It reaches the runner through Ray's key-value store, under the name of its actor.

Not as arguments of the actor: before it reads any, Ray imports numpy and pyarrow in each worker, 0.2 s on an idle machine.
"""

from __future__ import annotations

from typing import Final

import msgspec
import ray
from ray.experimental import internal_kv

from governor.tasks.protocol.wire import Serve  # noqa: TC001  # msgspec reads the annotation

NAMESPACE: Final = b"governor-runners"


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`import_path` is put in front of ``sys.path``. `working_folder` is the run file's: a machine that does not have it works
    in its own; None: there is no run file. `variables` go to its environment. `mark` is the process mark, `driver` the first one that the runner works for.
    """

    import_path: list[str]
    working_folder: str | None
    variables: dict[str, str] = {}
    mark: int
    driver: Serve


def store(name: str, settings: RunnerSettings) -> None:
    """For the actor of this name, which is created next. Calls into Ray."""
    internal_kv._internal_kv_put(name, msgspec.msgpack.encode(settings), namespace=NAMESPACE)  # noqa: SLF001  # its only interface


def drop(name: str) -> None:
    """Those of an actor that may not have taken them, and takes them no more. Calls into Ray."""
    internal_kv._internal_kv_del(name, namespace=NAMESPACE)  # noqa: SLF001  # as above


def take() -> RunnerSettings:
    """Those of this actor; they are in the store no more. Raises LookupError the second time."""
    name = ray.get_runtime_context().get_actor_name() or ""
    stored = internal_kv._internal_kv_get(name, namespace=NAMESPACE)  # noqa: SLF001  # as above
    if stored is None:
        raise LookupError(f"there are no settings for the runner {name}")
    internal_kv._internal_kv_del(name, namespace=NAMESPACE)  # noqa: SLF001  # as above
    return msgspec.msgpack.decode(stored, type=RunnerSettings)

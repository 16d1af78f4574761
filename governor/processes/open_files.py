"""The limit of open files: raised when the daemon starts; a hard limit that is too low is refused.

A daemon that runs out of descriptors is up but unreachable: libzmq aborts its broker, and no conductor can be started. So
it raises its own soft limit to the hard one, and its broker does the same. Conductors, and with them user code, begin with
the soft limit that the daemon was given: select() can't take a descriptor beyond 1,023. Ray raises its own.
"""

from __future__ import annotations

import resource

from governor.errors import ConfigError
from transport.file_limits import LEAST_FILES, file_limits, raise_file_limit

_given: int | None = None


def raise_limit() -> None:
    """May be called again. Raises ConfigError where the hard limit is too low."""
    global _given  # noqa: PLW0603 - there is one limit in a process
    soft, hard = file_limits()
    if hard < LEAST_FILES:
        fault = (
            f"it is {hard}, and the daemon needs {LEAST_FILES}: start it where `ulimit -Hn` says so, under systemd "
            f"with LimitNOFILE={LEAST_FILES} or more"
        )
        raise ConfigError("limit of open files", [fault])
    if _given is None and soft < hard:
        _given = soft
    raise_file_limit()


def of_conductors() -> int:
    """The soft limit that conductors begin with."""
    return _given if _given is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]

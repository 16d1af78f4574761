"""What a role may ask of the daemon: a viewer looks, an operator does everything.

Clients on this machine have no role: the permissions of the socket have decided.
"""

from __future__ import annotations

from typing import Final

from governor import logs
from governor.errors import NotPermitted
from governor.messages import (
    Explain,
    GetCurves,
    GetGroup,
    GetStatus,
    ListFailures,
    ListFiles,
    ListRuns,
    ReadFile,
    ReadOutput,
    Results,
    Watch,
    WatchGroup,
)

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ROLES: Final = (VIEWER, OPERATOR)
LOOKING: Final = frozenset(
    {
        Explain,
        GetCurves,
        GetGroup,
        GetStatus,
        ListFailures,
        ListFiles,
        ListRuns,
        ReadFile,
        ReadOutput,
        Results,
        Watch,
        WatchGroup,
    }
)

log = logs.get_logger()


def require(by: dict[str, object], asked: object) -> None:
    """Raises NotPermitted where who asks, as `Senders.of` has it, may not ask this."""
    role = by.get("role")
    if role in {None, OPERATOR} or (role == VIEWER and type(asked) in LOOKING):
        return
    verb = type(asked).__name__
    log.warning("request.not_permitted", verb=verb, by=by)
    raise NotPermitted(
        f"the key {by.get('name')!r} is a {role}'s, who may look and change nothing ({verb}): ask the administrator for the key of an "
        f"{OPERATOR}"
    )

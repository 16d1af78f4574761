"""Additional headers of requests to an environment, for instance for authorization.

Their values may be secrets: no error, log line or `repr` shows one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from governor.errors import UsageError

OURS: Final = frozenset({"idempotency-key", "content-length", "transfer-encoding"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, 5.6.2."""


def checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Raises UsageError for headers that no request can carry, and for those that this package sets."""
    if not isinstance(headers, Mapping):
        raise UsageError("headers should be a mapping of names to texts")
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a header")
        if name.lower() in OURS:
            raise UsageError(f"the header {name} is not yours to set")
        if not isinstance(value, str) or not value.isprintable():
            raise UsageError(f"the value of the header {name} is no text on one line")
    return dict(headers)

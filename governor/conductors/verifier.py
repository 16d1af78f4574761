"""Checks the run's secret: reports of conductors and commands to them carry it in a frame behind the message.

A message without the secret is refused unread, and counted; the log contains the first, second, fourth, eighth ...
one, so that a flood does not fill it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor import logs
from governor.errors import ExitCode, NotPermitted
from governor.messages import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.access import Secret

log = logs.get_logger()


class Verifier:
    """Checks messages; `about` is added to the log lines, `refused` counts."""

    def __init__(self, secret: Secret, **about: object) -> None:
        self.refused = 0
        self._secret = secret
        self._about = about

    def refusal(self, body: Sequence[bytes]) -> Refused | None:
        """The answer to a message without the secret; None for one with it."""
        if len(body) == 2 and self._secret.matches(body[1]):
            return None
        self.refused += 1
        if self.refused.bit_count() == 1:
            log.warning("message.not_permitted", **self._about, refused=self.refused)
        reason = "it does not show the secret of the run"
        return Refused(code=NotPermitted.code, message=reason, exit_code=ExitCode.NOT_PERMITTED)

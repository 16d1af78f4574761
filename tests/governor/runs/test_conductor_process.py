"""What the log says of a conductor that is ended."""

from __future__ import annotations

import pytest

from governor.runs.conductor_process import reason_of_signal


@pytest.mark.parametrize(
    ("signal", "why", "waited", "reason"),
    [
        ("SIGTERM", "", None, "it was not ready yet"),
        ("SIGKILL", "", None, ""),
        ("SIGKILL", "silent for 10 s", None, "silent for 10 s"),
        ("SIGTERM", "", 6.02, "still there after 6.0 s"),
        ("SIGKILL", "cannot work", 10, "cannot work; still there after 10.0 s"),
    ],
)
def test_a_signal_says_how_long_it_was_waited_for_if_it_was(signal, why, waited, reason):
    assert reason_of_signal(signal, why=why, waited=waited) == reason

"""Only time in which this process ran counts as silence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.processes.silence import LATE_SECONDS, TICK_SECONDS, SilenceTimer


def test_it_grows_with_each_tick_and_a_reset_ends_it():
    silence = SilenceTimer(10.0)
    assert [silence.tick(11.0), silence.tick(12.125), silence.tick(13.0)] == [1.0, 2.125, 3.0]
    silence.reset(13.5)
    assert silence.seconds == 0.0
    assert silence.tick(14.5) == 1.0


def test_a_late_tick_resets_it():
    silence = SilenceTimer(0.0)
    for now in (1.0, 2.0, 3.0):
        silence.tick(now)
    assert silence.tick(3.0 + TICK_SECONDS + LATE_SECONDS + 0.01) == 0.0
    assert silence.tick(5.51) == 1.0


@given(st.lists(st.integers(0, 24).map(lambda eighths: eighths / 8), min_size=1))
def test_it_is_the_sum_of_the_punctual_ticks_at_its_end(steps):
    silence = SilenceTimer(0.0)
    now, punctual = 0.0, 0.0
    for step in steps:
        before, now = now, now + step
        punctual = 0.0 if now - before > TICK_SECONDS + LATE_SECONDS else punctual + now - before
        assert silence.tick(now) == punctual

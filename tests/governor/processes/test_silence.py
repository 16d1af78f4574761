"""Silence is what we were there to hear."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from governor.processes.silence import BEAT_SECONDS, LATE_SECONDS, SilenceTimer


def test_it_grows_from_beat_to_beat_and_a_sign_of_life_ends_it():
    silence = SilenceTimer(10.0)
    assert [silence.passed(11.0), silence.passed(12.125), silence.passed(13.0)] == [1.0, 2.125, 3.0]
    silence.heard(13.5)
    assert silence.seconds == 0.0
    assert silence.passed(14.5) == 1.0


def test_who_comes_late_was_away_himself():
    silence = SilenceTimer(0.0)
    for now in (1.0, 2.0, 3.0):
        silence.passed(now)
    assert silence.passed(3.0 + BEAT_SECONDS + LATE_SECONDS + 0.01) == 0.0
    assert silence.passed(5.51) == 1.0


@given(st.lists(st.integers(0, 24).map(lambda eighths: eighths / 8), min_size=1))
def test_it_is_never_longer_than_the_punctual_beats_at_its_end(steps):
    silence = SilenceTimer(0.0)
    now, punctual = 0.0, 0.0
    for step in steps:
        before, now = now, now + step
        punctual = 0.0 if now - before > BEAT_SECONDS + LATE_SECONDS else punctual + now - before
        assert silence.passed(now) == punctual

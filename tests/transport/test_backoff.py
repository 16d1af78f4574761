"""Delays double, are never shorter than asked for, and never longer than their limit."""

from transport.backoff import Backoff


def test_delays_double_up_to_the_limit():
    assert [Backoff(0.5, longest=3.0).delay(retry) for retry in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Backoff(0.5, longest=3.0).delay(10_000) == 3.0
    assert Backoff(0.5).delay(10_000) > 1e18


def test_the_spread_is_added_at_random_and_stays_at_the_limit():
    backoff = Backoff(0.5, longest=60.0, spread=0.25)
    for retry in range(5):
        seconds = [backoff.delay(retry) for _ in range(100)]
        assert 0.5 * 2**retry <= min(seconds) < max(seconds) <= 0.5 * 2**retry * 1.25
    at_limit = [backoff.delay(5000) for _ in range(100)]
    assert 48.0 <= min(at_limit) < max(at_limit) <= 60.0


def test_a_delay_is_as_long_as_asked_for_but_bounded():
    assert Backoff(0.1, longest=60.0).delay(0, least=7) == 7
    assert Backoff(0.1, longest=60.0).delay(0, least=3600) == 60.0
    assert Backoff(8).delay(0, least=1) >= 8

import pytest

from governor.tasks.scheduling.chunks import (
    AIM_SECONDS,
    LEAST_SECONDS,
    MOST,
    ChunkSizes,
)


def sizes(seconds, *, workers=2, fixed=None):
    made = ChunkSizes(workers=workers, fixed=fixed)
    made.observe(seconds)
    return made


def test_nobody_knows_at_first_how_long_an_episode_is():
    assert ChunkSizes(workers=4).next(10_000) == 1


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.1])
def test_a_chunk_is_about_a_second_of_work(seconds):
    assert sizes(seconds).next(10**6) * seconds == pytest.approx(AIM_SECONDS, rel=0.15)


@pytest.mark.parametrize("seconds", [1.0, 600.0])
def test_long_ones_travel_alone(seconds):
    assert sizes(seconds).next(10**6) == 1


def test_no_chunk_is_endless():
    assert sizes(0.0).next(10**7) == MOST


def test_chunks_become_smaller_towards_the_end_but_not_too_small():
    made = sizes(0.001)
    assert made.next(400) == 100
    assert made.next(4) * 0.001 == pytest.approx(LEAST_SECONDS, rel=0.15)


def test_a_phase_of_many_short_ones_takes_few_chunks():
    made, left, chunks = sizes(0.0002), 10_000, 0
    while left > 0:
        left -= made.next(left)
        chunks += 1
    assert chunks < 40


def test_what_took_longer_lately_makes_chunks_smaller():
    made = sizes(0.001)
    before = made.next(10**6)
    for _ in range(50):
        made.observe(0.1)
    assert made.next(10**6) < before / 20


def test_a_fixed_size_is_the_size():
    made = sizes(100.0, fixed=7)
    assert made.next(1000) == made.next(1) == 7

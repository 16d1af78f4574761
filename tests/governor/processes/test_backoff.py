"""A budget of deaths in a row, the pause before each next start, and the story."""

from __future__ import annotations

from governor.processes.backoff import RestartPolicy


def test_the_back_off_doubles_up_to_its_limit_and_the_budget_ends_it():
    restarts = RestartPolicy(most=5, steady=30.0, first=0.5, longest=3.0)
    assert restarts.back_off == 0.0
    pauses = []
    for _ in range(5):
        assert not restarts.used_up
        restarts.died("exit code 1", lived=2.0)
        pauses.append(restarts.back_off)
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert restarts.used_up


def test_who_lived_long_enough_begins_anew():
    restarts = RestartPolicy(most=2, steady=30.0, first=0.5, longest=3.0)
    for _ in range(10):
        restarts.died("exit code 1", lived=30.0)
        assert (restarts.back_off, restarts.used_up) == (0.5, False)
    restarts.died("exit code 1", lived=29.9)
    assert restarts.used_up


def test_the_story_is_one_line_however_many_died():
    restarts = RestartPolicy(most=9, steady=30.0, first=0.5, longest=3.0)
    for code in range(1, 10):
        restarts.died(f"exit code {code}", lived=code / 2)
    assert restarts.story == (
        "died 9 times in a row, each within 30 s: "
        "exit code 1 after 0.5 s; exit code 2 after 1.0 s; …; exit code 9 after 4.5 s"
    )


def test_however_many_died_the_pause_has_its_limit():
    restarts = RestartPolicy(most=9, steady=30.0, first=0.5, longest=3.0)
    for _ in range(2_000):
        restarts.died("exit code 1", lived=1.0)
    assert restarts.back_off == 3.0

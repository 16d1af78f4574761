"""A maximum of exits in a row, the delay before each restart, and the summary."""

from __future__ import annotations

from governor.processes.restart_policy import RestartPolicy


def test_the_delay_doubles_up_to_its_limit_until_the_policy_is_exhausted():
    restarts = RestartPolicy(most=5, steady=30.0, first=0.5, longest=3.0)
    assert restarts.delay == 0.0
    pauses = []
    for _ in range(5):
        assert not restarts.exhausted
        restarts.exited("exit code 1", lived=2.0)
        pauses.append(restarts.delay)
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert restarts.exhausted


def test_an_exit_after_a_long_run_resets_the_count():
    restarts = RestartPolicy(most=2, steady=30.0, first=0.5, longest=3.0)
    for _ in range(10):
        restarts.exited("exit code 1", lived=30.0)
        assert (restarts.delay, restarts.exhausted) == (0.5, False)
    restarts.exited("exit code 1", lived=29.9)
    assert restarts.exhausted


def test_the_summary_is_one_line_whatever_the_number_of_exits():
    restarts = RestartPolicy(most=9, steady=30.0, first=0.5, longest=3.0)
    for code in range(1, 10):
        restarts.exited(f"exit code {code}", lived=code / 2)
    assert restarts.summary == (
        "died 9 times in a row, each within 30 s: "
        "exit code 1 after 0.5 s; exit code 2 after 1.0 s; …; exit code 9 after 4.5 s"
    )


def test_the_delay_is_limited_whatever_the_number_of_exits():
    restarts = RestartPolicy(most=9, steady=30.0, first=0.5, longest=3.0)
    for _ in range(2_000):
        restarts.exited("exit code 1", lived=1.0)
    assert restarts.delay == 3.0

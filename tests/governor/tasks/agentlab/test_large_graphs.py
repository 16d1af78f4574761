"""`execute_task_graph` with graphs as large as its users' largest."""

from __future__ import annotations

import pytest

from governor.tasks import SchedulerConfig, execute_task_graph
from tests.support.user_code.experiments import Exp

pytestmark = [pytest.mark.usefixtures("harness"), pytest.mark.long]

CHAIN = 10_000
WIDE = 100_000


def test_a_long_chain():
    chain = [
        Exp(number, "give", number, depends_on=[number - 1] if number else ()) for number in range(CHAIN)
    ]
    results = execute_task_graph(chain, config=SchedulerConfig(grace=0.2))
    assert list(results.items()) == [(number, number) for number in range(CHAIN)]


def test_a_wide_graph():
    wide = [Exp(number, "give", number) for number in range(WIDE)]
    results = execute_task_graph(wide, config=SchedulerConfig(grace=0.2))
    assert list(results.items()) == [(number, number) for number in range(WIDE)]

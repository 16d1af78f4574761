"""Two learners in PettingZoo's protocol meet far sooner than random players."""

import pandas as pd
import pytest
from pettingzoo.test import parallel_api_test

from tests.support.pages.example_runs import examples_path, result_of


@pytest.mark.long
@pytest.mark.system
def test_two_agents_learn_to_meet(tmp_path):
    result = result_of("rendezvous", tmp_path)
    assert result["outcome"] == "finished"
    at_random, _, evaluate = (phase["metrics"] for phase in result["phases"])
    # At random about -2.8, learned about 1.4; the standard error of either mean is below 0.25.
    assert evaluate["return_mean"] > at_random["return_mean"] + 3
    for player in ("red", "blue"):
        assert evaluate[f"return_mean.{player}"] > at_random[f"return_mean.{player}"] + 1
    steps = pd.read_parquet(f"{result['folder']}/episodes/evaluate.parquet")
    earned = sum(row["reward"] for player in ("red", "blue") for row in steps[player])
    assert earned == pytest.approx(200 * evaluate["return_mean"])


def test_the_room_follows_pettingzoos_protocol(monkeypatch):
    monkeypatch.syspath_prepend(str(examples_path("rendezvous")))
    from rendezvous import Rendezvous

    parallel_api_test(Rendezvous(), num_cycles=200)

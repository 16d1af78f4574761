"""What is said of a process that user code ends: of a large vector not all episodes."""

import pytest

from governor.episodes import exits


@pytest.mark.parametrize(
    ("episodes", "told"),
    [
        ([], ""),
        ([7], "agent.act of episode 7"),
        (range(8), "agent.act of episodes 0, 1, 2, 3, 4, 5, 6, 7"),
        (range(1000), "agent.act of episodes 0, 1, 2, 3, 4, 5, 6, 7 and 992 more"),
    ],
)
def test_a_place_names_its_first_episodes(episodes, told):
    assert exits.describe("agent.act", episodes) == told

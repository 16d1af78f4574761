"""The report and the live page of each example that is one run, in a real Chromium; those with torch are looked at where they are played."""

import re

import pytest

from tests.support.pages.example_pages import look_at_both, served
from tests.support.pages.example_runs import examples_path
from tests.support.pages.report_documents import HOSTILE

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PLAYED_ELSEWHERE = {"ppo", "stable_baselines3", "sweep"}
RUN = """\
name: hostile
conductors:
  environments: {pole: {entry: "gymnasium:CartPole-v1"}}
  agents: {bad: {entry: "hostile:Agent"}}
phases:
  - name: train
    simulate: {environment: pole, agents: [bad], episodes: 6, transport: in_process}
    failures: {at_most: 100%}
"""
AGENT = """
class Agent:
    def __init__(self, **_):
        self.steps = 0

    def act(self, observation, *, explore):
        self.steps += 1
        print(SAID)
        if self.steps % 20 == 0:
            raise ValueError(SAID)
        return self.steps % 2
"""
RUN_OF_MANY = """\
name: many
conductors:
  environments: {lake: {entry: "gymnasium:FrozenLake-v1"}}
  agents: {walker: {entry: "many:Agent"}}
phases:
  - name: train
    simulate: {environment: lake, agents: [walker], episodes: 10000, transport: in_process}
  - name: fit
    tasks: [{id: fit, call: "many:fit", repeat: 10000}]
"""
MANY = """
class Agent:
    def __init__(self, *, observation_space, action_space, seed):
        action_space.seed(seed)
        self.space = action_space

    def act(self, observation, *, explore):
        return int(self.space.sample())

def fit():
    return {"loss": 0.5}
"""


@pytest.mark.parametrize(
    "example", sorted({path.parent.name for path in examples_path("").glob("*/run.yaml")} - PLAYED_ELSEWHERE)
)
def test_report_and_live_page_of_an_example(example, playwright, play_and_look):
    assert play_and_look(example)["outcome"] == "finished"


def test_what_user_code_says_stays_text_on_both_pages(governor, playwright, folder):
    (folder / "hostile.py").write_text(f"SAID = {HOSTILE!r}\n{AGENT}")
    (folder / "run.yaml").write_text(RUN)
    with served(governor):
        said = governor("submit", "run.yaml")
        uid = re.search(r"(\w{8})", said)[1]
        governor("watch", uid, code=None)
        for found in look_at_both(uid, governor, playwright, folder):
            assert found["images"] == 0
            assert found["text"].count("</script><script>alert(1)</script><img src=x onerror=alert(2)>") >= 2


def test_ten_thousand_episodes_and_tasks_are_on_both_pages(governor, playwright, folder):
    (folder / "many.py").write_text(MANY)
    (folder / "run.yaml").write_text(RUN_OF_MANY)
    with served(governor):
        said = governor("submit", "run.yaml", "--wait")
        for found in look_at_both(re.search(r"run (\w+)", said)[1], governor, playwright, folder):
            assert found["text"].count("10,000") >= 2

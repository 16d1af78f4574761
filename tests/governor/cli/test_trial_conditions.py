"""`governor try` and the conditions of the user's own: they are built before the episode, and asked about it alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
CODE = '''
import gymnasium

class Step:
    """One step, of reward 1."""
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        print("built")
    def reset(self, *, seed=None):
        return 0, {}
    def step(self, action):
        return 0, 1.0, True, False, {}

class Agent:
    def __init__(self, observation_space, action_space, seed):
        pass
    def act(self, observation, *, explore):
        return 1

class Told:
    """`answers` by method."""
    def __init__(self, context, **answers):
        print("told", context.run_id, context.run_folder.is_dir())
        self.answers = answers
    def episode_flow_control(self, episode):
        print("episode", episode.index, episode.outcome, episode.value, episode.evaluation)
        return self.answers.get("episode")
    def phase_flow_control(self, metrics):
        print("phase", metrics["episodes_ended"])
        return self.answers.get("phase")

class Raises:
    def __init__(self, built=False):
        if built:
            raise RuntimeError("not today")
    def phase_flow_control(self, metrics):
        raise KeyError("gain")

class Mute:
    pass
'''
RUN = """\
name: tried
conductors:
  environments: {{step: {{entry: "tried_code:Step"}}}}
  agents: {{agent: {{entry: "tried_code:Agent"}}}}
phases:
  - name: play
    simulate: {{environment: step, agents: [agent], episodes: 4}}
    evaluate: {{every: 2, episodes: 3}}
    until: [{{steps: 100}}, {conditions}]
"""


@pytest.fixture
def tried(tmp_path):
    """Plays an episode; what is printed, without the line of its end."""
    (tmp_path / "tried_code.py").write_text(CODE)

    def tried(*conditions, episode=0, code=0):
        (tmp_path / "run.yaml").write_text(RUN.format(conditions=", ".join(conditions)))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "governor",
                "try",
                "run.yaml",
                "--phase",
                "play",
                "--episode",
                str(episode),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        lines = [line for line in done.stdout.splitlines() if not line.startswith("terminated after 1 steps")]
        return lines, done.stderr

    return tried


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("", "CONTINUE"),
        ("episode: RESET", "until[1] (tried_code:Told): RESET after episode 1"),
        ("episode: PAUSE, phase: STOP_PHASE", "until[1] (tried_code:Told): STOP_PHASE after episode 1"),
    ],
)
def test_the_strongest_answer_is_shown(tried, answers, said):
    lines, _ = tried(f'{{entry: "tried_code:Told", params: {{{answers}}}}}', episode=1)
    assert lines == [
        "told try True",
        "built",
        "episode 1 terminated 1.0 0",
        "phase 1",
        f"conditions: {said}",
    ]


def test_an_episode_of_an_evaluation_has_its_number(tried):
    lines, _ = tried('{entry: "tried_code:Told"}', episode=4 + 3)
    assert "episode 7 terminated 1.0 2" in lines


def test_of_built_in_conditions_nothing_is_said(tried):
    assert tried("{steps: 1}")[0] == ["built"]


@pytest.mark.parametrize(
    ("condition", "said", "built"),
    [
        ("Raises", "governor: until[1] (tried_code:Raises).phase_flow_control of episode 0: it raised\nTraceback", True),
        ("Raises, params: {built: true}", "governor: until[1] (tried_code:Raises): it raised\nTraceback", False),
        ("Mute", "governor: error: until[1] (tried_code:Mute): has neither episode_flow_control nor ", False),
        ("Nobody", "governor: until[1] (tried_code:Nobody): it raised\nAttributeError: ", False),
        ("Told, params: {episode: STOP}", "ValueError: answered 'STOP', which is none of CONTINUE, PAUSE, ", True),
    ],
)  # fmt: skip
def test_what_goes_wrong_has_its_place_and_the_users_traceback(tried, condition, said, built):
    name, *params = condition.split(", ", 1)
    entry = ", ".join([f'entry: "tried_code:{name}"', *params])
    lines, err = tried(f"{{{entry}}}", code=1)
    assert said in err
    assert "governor/episodes" not in err
    assert ("built" in lines) is built

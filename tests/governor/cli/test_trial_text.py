"""`governor try` with a language model: the conversation is shown; an environment in Python is in the process of the verb."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
GAMES = REPOSITORY / "examples" / "text_game"
CODE = '''
class Game:
    """Guess a number from 1 to 100."""
    def __init__(self, number, fault=""):
        self.number, self.fault = number, fault
        self.messages = [{"role": "system", "content": "Guess a number from 1 to 100."}]
    def reset(self, *, seed=None):
        print("seed", seed)
    def get_task_prompt(self):
        return self.messages
    def step(self, action):
        if self.fault:
            raise ValueError(action)
        guess = int(action)
        said = "Higher." if guess < self.number else "Lower." if guess > self.number else "Yes!"
        self.messages += [{"role": "assistant", "content": action}, {"role": "user", "content": said}]
        return float(guess == self.number), guess == self.number, False, {}
'''
RUN = """\
name: talk
seed: 7
conductors:
  environments: {game: ENVIRONMENT}
  agents: {player: {entry: "openai:bisection", params: {base_url: "MODEL/v1", message_cut: 0, retries: 0}}}
phases:
  - {name: play, mode: eval, simulate: {environment: game, agents: [player], episodes: 9, max_steps: 10, transport: in_process}}
"""


@pytest.fixture
def serve():
    """Starts a server of the example; its address."""
    with ExitStack() as stack:

        def start(script):
            server = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, GAMES / script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(server.stdin.close)  # it ends with its standard input
            return server.stdout.readline().strip()

        yield start


def governor(folder, environment, model, code=0):
    (folder / "run.yaml").write_text(RUN.replace("ENVIRONMENT", environment).replace("MODEL", model))
    (folder / "talk_code.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-m", "governor", "try", "run.yaml", "--phase", "play", "--episode", "3"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def test_an_environment_in_python(tmp_path, serve):
    done = governor(tmp_path, '{entry: "talk_code:Game", params: {number: 38}}', serve("model_server.py"))
    first, *conversation, last = done.stdout.splitlines()
    assert first.startswith("seed ")
    assert first.removeprefix("seed ") in done.stderr
    assert conversation == [
        "system: Guess a number from 1 to 100.",
        "assistant: 50",
        "-- step 1, reward 0",
        "user: Lower.",
        "assistant: 25",
        "-- step 2, reward 0",
        "user: Higher.",
        "assistant: 37",
        "-- step 3, reward 0",
        "user: Higher.",
        "assistant: 43",
        "-- step 4, reward 0",
        "user: Lower.",
        "assistant: 40",
        "-- step 5, reward 0",
        "user: Lower.",
        "assistant: 38",
        "-- step 6, reward 1",
    ]
    assert last.startswith("terminated after 6 steps, return 1, ")


def test_its_traceback(tmp_path, serve):
    environment = '{entry: "talk_code:Game", params: {number: 38, fault: x}}'
    done = governor(tmp_path, environment, serve("model_server.py"), code=1)
    assert done.stdout.endswith("assistant: 50\n")
    assert done.stderr.endswith("raise ValueError(action)\nValueError: 50\n")
    assert "governor/episodes" not in done.stderr


def test_an_environment_behind_a_server_and_a_model_that_does_not_answer(tmp_path, serve):
    model, game = serve("model_server.py"), serve("game_server.py")
    environment = f'{{entry: "{game}", params: {{name: guess}}}}'
    done = governor(tmp_path, environment, model)
    assert "terminated after " in done.stdout.splitlines()[-1]
    done = governor(tmp_path, environment, "http://127.0.0.1:9", code=1)
    assert done.stdout.splitlines()[-1].startswith("failed after 0 steps")

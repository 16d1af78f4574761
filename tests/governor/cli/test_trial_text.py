"""`governor try` with a language model: the conversation is shown; an environment in Python is in the process of the verb."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
GAMES = REPOSITORY / "examples" / "text_game"
CODE = '''
import asyncio, threading

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
        if self.fault == "x":
            raise ValueError(action)
        guess = int(action)
        said = "Higher." if guess < self.number else "Lower." if guess > self.number else "Yes!"
        self.messages += [{"role": "assistant", "content": action}, {"role": "user", "content": said}]
        return float(guess == self.number), guess == self.number, False, {}
    def close(self):
        print("closed")
        if self.fault == "close":
            raise RuntimeError("it does not close")

class Told(Game):
    def __init__(self, number, *, context):
        super().__init__(number)
        self.context = context
    def step(self, action):
        self.context.report(guess=int(action))
        print(self.context.run_id, self.context.phase, self.context.episode, self.context.run_folder.is_dir())
        return super().step(action)

class Later(Game):
    async def step(self, action):
        assert threading.current_thread() is threading.main_thread()
        await asyncio.sleep(0)
        return super().step(action)
    async def close(self):
        await asyncio.sleep(0)
        super().close()

class Quick:
    """A condition of the user's own."""
    def episode_flow_control(self, episode):
        return f"it was {episode.outcome}, {episode.index}, {episode.steps}" if episode.value else "SHUTDOWN"
'''
RUN = """\
name: talk
seed: 7
conductors:
  environments: {game: ENVIRONMENT}
  agents: {player: {entry: "openai:bisection", params: {base_url: "MODEL/v1", message_cut: 0, retries: 0}}}
phases:
  - {name: play, mode: eval, simulate: {environment: game, agents: [player], episodes: 9, max_steps: 10, transport: in_process}}
  - {name: asked, inherits: play, until: [{entry: "talk_code:Quick"}]}
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


def write(folder, environment, model):
    (folder / "run.yaml").write_text(RUN.replace("ENVIRONMENT", environment).replace("MODEL", model))
    (folder / "talk_code.py").write_text(CODE)


def start(folder, phase="play"):
    return subprocess.Popen(
        [sys.executable, "-m", "governor", "try", "run.yaml", "--phase", phase, "--episode", "3"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def governor(folder, environment, model, code=0, phase="play"):
    write(folder, environment, model)
    with start(folder, phase) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return subprocess.CompletedProcess(process.args, code, out, err)


def test_an_environment_in_python(tmp_path, serve):
    done = governor(tmp_path, '{entry: "talk_code:Game", params: {number: 38}}', serve("model_server.py"))
    first, *conversation, last, closed = done.stdout.splitlines()
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
    assert closed == "closed"


def test_its_context(tmp_path, serve):
    done = governor(tmp_path, '{entry: "talk_code:Told", params: {number: 25}}', serve("model_server.py"))
    assert done.stdout.count("try play 3 True\n") == 2


def test_its_traceback(tmp_path, serve):
    environment = '{entry: "talk_code:Game", params: {number: 38, fault: x}}'
    done = governor(tmp_path, environment, serve("model_server.py"), code=1)
    assert done.stdout.endswith("assistant: 50\nclosed\n")
    assert done.stderr.endswith("raise ValueError(action)\nValueError: 50\n")
    assert "governor/episodes" not in done.stderr


def test_an_environment_behind_a_server_and_a_model_that_does_not_answer(tmp_path, serve):
    model, game = serve("model_server.py"), serve("game_server.py")
    environment = f'{{entry: "{game}", params: {{name: guess}}}}'
    done = governor(tmp_path, environment, model)
    assert "terminated after " in done.stdout.splitlines()[-1]
    done = governor(tmp_path, environment, "http://127.0.0.1:9", code=1)
    assert done.stdout.splitlines()[-1].startswith("failed after 0 steps")


def test_a_condition_of_the_users_own_is_asked_about_it(tmp_path, serve):
    environment = '{entry: "talk_code:Game", params: {number: 38}}'
    done = governor(tmp_path, environment, serve("model_server.py"), code=1, phase="asked")
    assert "ValueError: answered 'it was terminated, 3, 6', which is none of CONTINUE, PAUSE, " in done.stderr
    done = governor(tmp_path, environment, "http://127.0.0.1:9", code=1, phase="asked")
    said = "conditions: until[0] (talk_code:Quick): SHUTDOWN after episode 3"
    assert done.stdout.splitlines()[-2:] == [said, "closed"], "also about one that failed"


def test_an_async_environment_is_in_the_callers_thread(tmp_path, serve):
    model = serve("model_server.py")
    done = governor(tmp_path, '{entry: "talk_code:Later", params: {number: 38}}', model)
    assert done.stdout.splitlines()[-2].startswith("terminated after 6 steps, return 1, ")
    assert done.stdout.endswith("\nclosed\n")
    done = governor(tmp_path, '{entry: "talk_code:Later", params: {number: 38, fault: x}}', model, code=1)
    assert done.stderr.count("  File ") == 2, done.stderr


def test_a_close_that_raises_has_no_effect(tmp_path, serve):
    environment = '{entry: "talk_code:Game", params: {number: 50, fault: close}}'
    done = governor(tmp_path, environment, serve("model_server.py"))
    assert "terminated after 1 steps" in done.stdout
    assert "environment.close: it raised; in a run this has no effect\nTraceback" in done.stderr
    assert done.stderr.endswith("RuntimeError: it does not close\n")


def test_ctrl_c_while_the_model_is_awaited(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write(
            tmp_path,
            '{entry: "talk_code:Game", params: {number: 38}}',
            f"http://127.0.0.1:{silent.getsockname()[1]}",
        )
        with start(tmp_path) as process:
            asked, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
            asked.close()
    assert (process.returncode, out.endswith("\nclosed\n")) == (130, True), (out, err)
    assert err.endswith("governor: episode 3, while the model was asked: interrupted\nKeyboardInterrupt\n")
    assert len(err.splitlines()) == 3

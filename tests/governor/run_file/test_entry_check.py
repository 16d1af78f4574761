import os
import time

import psutil
import pytest

from governor.episodes.records import state_file
from governor.run_file import entry_check
from tests.support.run_files import verdicts

SLEEP = f"98765.{os.getpid()}"
"""Nobody else's."""
CODE = {
    "good": "print('noise')\nimport sys; print('noise', file=sys.stderr)\ndef f(): ...\nclass K:\n    x = 3\n    def run(self): ...\nk = K()\n",
    "dies": "import os; os._exit(3)",
    "killed": "import os; os.kill(os.getpid(), 40)",
    "exits": "import sys; sys.exit('no way')",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": f"import subprocess, time; subprocess.Popen(['sleep', '{SLEEP}']); time.sleep(1000)",
    "needs": "import nothing_that_exists",
    "broken": "def f(:",
    "agents": "class Fixed:\n    def __init__(self, **params): ...\n    def act(self, observation, *, explore): ...\n"
    "class Learns(Fixed):\n    def learn(self, transition): ...\n"
    "class Keeps(Learns):\n    def state_dict(self): ...\n    def load_state_dict(self, state): ...\n",
    "conditions": "class Good:\n    def __init__(self, window, at_least=0.0): ...\n    def episode_flow_control(self, episode): ...\n"
    "class Told:\n    def __init__(self, context): ...\n    def phase_flow_control(self, metrics): ...\n"
    "class Peer:\n    def phase_flow_control(self, run_governor, message): ...\n"
    "class Mute:\n    def brain_flow_control(self, brain, message): ...\n"
    "def made(**params): ...\n",
    "raises": "raise RuntimeError('first line\\nsecond line')",
    "imports_raises": "import raises",
    "imports_broken": "\nimport broken",
    "imports_needs": "\nimport needs",
    "imports_exits": "import exits",
}


@pytest.fixture
def folder(tmp_path):
    for name, code in CODE.items():
        (tmp_path / f"{name}.py").write_text(code)
    return tmp_path


def test_good_entries_have_no_fault(folder):
    assert verdicts(folder, "good:f", "good:K", "good:k", "time:time", "os:getcwd") == {}


def test_each_bad_entry_has_its_reason_and_all_are_found(folder):
    said = verdicts(
        folder,
        "dies:x",
        "good:f",
        "dies:y",
        "killed:x",
        "exits:f",
        "crashes:f",
        "good:g",
        "good:K.x",
        "needs:f",
        "absent:f",
        "broken:f",
        "raises:f",
        "json:dumpz",
    )
    assert "exit code 3" in said.pop("dies:x")
    assert "exit code 3" in said.pop("dies:y")
    assert said.pop("killed:x") == "the import crashes Python (signal 40)"
    assert "SystemExit: no way" in said.pop("exits:f")
    assert "SIGSEGV" in said.pop("crashes:f")
    assert said.pop("good:g") == "module 'good' has no 'g'"
    assert "type int" in said.pop("good:K.x")
    assert "nothing_that_exists" in said.pop("needs:f")
    assert "no module named 'absent'" in said.pop("absent:f")
    assert "SyntaxError" in said.pop("broken:f")
    assert said.pop("raises:f").endswith("RuntimeError: first line second line (raises.py:1)")
    assert "did you mean 'dump'?" in said.pop("json:dumpz")
    assert said == {}


def test_an_import_that_fails_is_told_with_its_innermost_file_and_line(folder):
    targets = [f"imports_{name}:f" for name in ("raises", "broken", "needs", "exits")]
    ends = {target: said.rpartition(" ")[2] for target, said in verdicts(folder, *targets).items()}
    assert ends == dict(
        zip(targets, ("(raises.py:1)", "(broken.py:1)", "(needs.py:1)", "(exits.py:1)"), strict=True)
    )


def test_what_a_condition_takes_is_compared_with_its_params(folder):
    def said(name, **params):
        rule = {"entry": f"conditions:{name}", "params": params}
        asked = entry_check.of_data({"phases": [{}, {"until": [{"steps": 5}, rule]}]})
        return entry_check.faults(asked, folder=folder)

    place = ("phases", 1, "until", 1, "entry")
    for good in (
        said("Good", window=5),
        said("Good", window=5, at_least=1.0),
        said("Told"),
        said("made", a=1),
    ):
        assert good == []
    assert said("Good") == [
        (
            place,
            "'conditions:Good' needs 'window'",
        )
    ]
    assert said("Good", window=5, at_last=1.0) == [
        (
            (*place[:-1], "params", "at_last"),
            "'conditions:Good' takes no 'at_last'; did you mean 'at_least'? (it takes window, at_least)",
        )
    ]
    assert said("Peer") == [
        (
            place,
            "'conditions:Peer' must have phase_flow_control(self, x), where x is the metrics of the phase",
        )
    ]
    assert said("Mute") == [
        (
            place,
            "'conditions:Mute' has neither episode_flow_control nor phase_flow_control: a condition answers by one of them",
        )
    ]
    assert said("Goood") == [(place, "module 'conditions' has no 'Goood'; did you mean 'Good'?")]
    assert len(said("made", **{f"p{n}": n for n in range(100_000)})) == 0, "too many for a command line"


def test_a_hang_ends_at_its_limit_and_leaves_no_process(folder):
    before = set(psutil.Process().children())
    begun = time.monotonic()
    assert not verdicts(folder, "good:f", seconds=1.5)
    of_a_process = time.monotonic() - begun
    begun = time.monotonic()
    said = verdicts(folder, "hangs:f", "good:f", "hangs:g", seconds=1.5)
    assert time.monotonic() - begun < 2 * 1.5 + 2 * 3 * of_a_process, "three processes, two hangs"
    assert set(said) == {"hangs:f", "hangs:g"}
    assert "does not end within 1.5 s" in said["hangs:f"]
    assert not [
        child for child in psutil.process_iter(["cmdline"]) if child.info["cmdline"] == ["sleep", SLEEP]
    ]
    assert set(psutil.Process().children()) <= before


def test_an_object_with_run_is_a_task_but_no_agent(folder):
    said = verdicts(folder, "good:k", "good:K", kind="agent")
    assert said["good:k"].endswith("is of type K, which can't be called")
    assert "has no act" in said["good:K"]


def test_a_class_that_cannot_be_run_is_no_task(folder):
    targets = ("agents:Fixed", "lazily:run_later", "lazily:Called")
    (folder / "lazily.py").write_text(
        "from functools import partial\nfrom agents import Fixed\nrun_later = partial(Fixed)\n"
        "class Called:\n    def __call__(self): ...\n"
    )
    said = verdicts(folder, *targets)
    assert set(said) == {"agents:Fixed", "lazily:run_later"}
    assert (
        said["agents:Fixed"] == "'agents:Fixed' is a class without run() or arun(): there is nothing to run"
    )
    assert verdicts(folder, "agents:Fixed", kind="agent") == {}


def test_gymnasium_ids(folder):
    said = verdicts(
        folder,
        "gymnasium:FrozenLake-v1",
        "gymnasium:FrozenLak-v1",
        "gymnasium:absent:X-v1",
        kind="environment",
    )
    assert set(said) == {"gymnasium:FrozenLak-v1", "gymnasium:absent:X-v1"}
    assert "did you mean 'FrozenLake-v1'" in said["gymnasium:FrozenLak-v1"]


def test_the_state_of_an_agent_is_a_file_that_can_be_read(folder):
    state_file.save(folder / "good.state", {"learned": 3})
    (folder / "bad.state").write_bytes(b"nonsense")
    said = verdicts(folder, "good.state", "bad.state", str(folder / "none.state"), kind="state")
    assert said.pop(str(folder / "none.state")) == f"the agent's state {folder}/none.state is not there"
    assert said.pop("bad.state").startswith(f"the agent's state {folder}/bad.state cannot be read: ")
    assert said == {}
    place = ("conductors", "agents", "a", "state")
    data = {"conductors": {"agents": {"a": {"state": "good.state"}, "b": {"state": 5}}}}
    assert entry_check.of_data(data) == [
        entry_check.UserEntry(place=place, kind="state", target="good.state")
    ]


def test_entries_of_anything():
    for data in (
        None,
        [],
        {"conductors": 5, "phases": [None, {"tasks": [3, {"call": 5}]}]},
        {"conductors": {"agents": {"a": None}}},
    ):
        assert entry_check.of_data(data) == []
    data = {
        "conductors": {"agents": {"a": {"entry": "m:C"}}},
        "phases": [{}, {"tasks": [{}, {"call": "m:f"}]}],
        "sede": 1,
    }
    assert [(entry.place, entry.kind) for entry in entry_check.of_data(data)] == [
        (("conductors", "agents", "a", "entry"), "agent"),
        (("phases", 1, "tasks", 1, "call"), "task"),
    ]


def on_ray(agent, *phases):
    """Faults of a run whose agent is made of `agent` and is in these phases."""
    played = [
        {"mode": mode, "simulate": {"agents": ["a"], "transport": transport}} for mode, transport in phases
    ]
    return entry_check.of_data({"conductors": {"agents": {"a": {"entry": agent}}}, "phases": played})


def test_an_agent_on_ray_does_not_learn_there_and_brings_what_it_learned_elsewhere(folder):
    train, there = ("train", "in_process"), ("eval", "ray")
    place = ("phases", 0, "simulate", "agents", 0)
    [(found, said)] = entry_check.faults(on_ray("agents:Keeps", ("train", "ray")), folder=folder)
    assert found == place
    assert said.endswith("train with transport: conductors or in_process, and use ray with mode: eval")
    [(found, said)] = entry_check.faults(on_ray("agents:Learns", train, there), folder=folder)
    assert found == ("phases", 1, "simulate", "agents", 0)
    assert "has no state_dict() and load_state_dict(state)" in said
    for agent, phases in (
        ("agents:Fixed", [("train", "ray")]),
        ("agents:Fixed", [train, there]),
        ("agents:Keeps", [train, there]),
        ("agents:Learns", [there, train]),
    ):
        assert entry_check.faults(on_ray(agent, *phases), folder=folder) == []


def test_an_agent_that_does_not_import_is_reported_once(folder):
    [(place, _)] = entry_check.faults(on_ray("raises:A", ("train", "ray")), folder=folder)
    assert place == ("conductors", "agents", "a", "entry")


def test_the_current_folder_is_not_on_the_path(folder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    assert "no module named 'good'" in verdicts(tmp_path / "elsewhere", "good:f")["good:f"]


def test_entries_are_imported_in_the_run_files_folder(folder):
    (folder / "places.py").write_text("import os\nopen('place', 'w').write(os.getcwd())\ndef f(): ...\n")
    assert verdicts(folder, "places:f") == {}
    assert (folder / "place").read_text() == str(folder)


def test_a_folder_that_is_gone_is_the_reason(folder):
    gone = folder / "gone"
    assert f"folder {gone} cannot be entered (No such file" in verdicts(gone, "json:dumps")["json:dumps"]


def test_arguments_have_their_own_line(folder):
    (folder / "mine.py").write_text(
        "import gymnasium\nfrom gymnasium.spaces import Discrete\n"
        "def load(path, *, rows=3): ...\n"
        "class Room(gymnasium.Env):\n    def __init__(self, size=3): self.observation_space = self.action_space = Discrete(size)\n"
        "    def reset(self): ...\n    def step(self, action): ...\n"
        "def wrap(environment, times): return environment\n"
    )
    plain = {"entry": "mine:Room", "params": {"sise": 4}}
    wrapped = {**plain, "wrappers": ["mine:wrap", {"entry": "mine:wrap", "params": {"time": 3}}]}
    played = [{"simulate": {"environment": name, "agents": []}} for name in ("plain", "wrapped")]
    tasks = {"tasks": [{"call": "mine:load", "args": {"rows": 3}}, {"call": "mine:load", "args": {"pth": 3}}]}
    asked = entry_check.of_data(
        {
            "conductors": {"environments": {"plain": plain, "wrapped": wrapped}},
            "phases": [*played, tasks],
        }
    )
    said = entry_check.faults(asked, folder=folder)
    where = ("conductors", "environments")
    assert [place for place, _ in said] == [
        (*where, "plain", "params", "sise"),
        (*where, "plain", "entry"),
        (*where, "wrapped", "params", "sise"),
        (*where, "wrapped", "wrappers", 0, "entry"),
        (*where, "wrapped", "wrappers", 1, "params", "time"),
        ("phases", 2, "tasks", 0, "call"),
        ("phases", 2, "tasks", 1, "args", "pth"),
    ]
    assert [message.partition("; ")[2] for _, message in said if ";" in message] == [
        "did you mean 'size'? (it takes size)",
        "did you mean 'size'? (it takes size)",
        "did you mean 'times'? (it takes times)",
        "did you mean 'path'? (it takes path, rows)",
    ]


def test_params_of_a_gymnasium_id_are_those_of_make_and_of_its_class(folder):
    def said(*params, target="gymnasium:FrozenLake-v1"):
        asked = entry_check.UserEntry(place=("x", "entry"), kind="environment", target=target, params=params)
        return entry_check.faults([asked], folder=folder)

    assert said("is_slippery", "max_episode_steps", "render_mode", "disable_env_checker") == []
    [(place, message)] = said("slippery")
    assert place == ("x", "params", "slippery")
    assert "did you mean 'is_slippery'?" in message
    assert said(target="gymnasium:FrozenLake") == [], "the highest version"


def test_an_id_of_a_package_is_answered_with_what_to_write(folder):
    (folder / "minigrid.py").write_text(
        "import gymnasium\ngymnasium.register('MiniGrid-Mine-v0', entry_point='gymnasium.envs.toy_text:FrozenLakeEnv')\n"
    )
    said = verdicts(
        folder,
        "gymnasium:FlappyBird-v0",
        "gymnasium:MiniGrid-Mine-v0",
        "gymnasium:MiniGrid-Mime-v0",
        "gymnasium:minigrid:MiniGrid-Mine-v0",
        "gymnasium:flappy_bird_gymnasium:FlappyBird-v0",
        kind="environment",
    )
    assert said == {
        "gymnasium:FlappyBird-v0": "gymnasium has no environment 'FlappyBird-v0': install the package flappy-bird-gymnasium, and write "
        "gymnasium:flappy_bird_gymnasium:FlappyBird-v0",
        "gymnasium:MiniGrid-Mine-v0": "gymnasium has no environment 'MiniGrid-Mine-v0': write "
        "gymnasium:minigrid:MiniGrid-Mine-v0",
        "gymnasium:MiniGrid-Mime-v0": "gymnasium has no environment 'MiniGrid-Mime-v0'; did you mean "
        "'gymnasium:minigrid:MiniGrid-Mine-v0'?",
        "gymnasium:flappy_bird_gymnasium:FlappyBird-v0": "there is no module 'flappy_bird_gymnasium': install the package flappy-bird-gymnasium",
    }

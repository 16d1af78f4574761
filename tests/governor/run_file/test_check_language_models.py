"""What `governor check` says of language models and of text environments."""

import re

import pytest
from click.testing import CliRunner

from governor.cli import cli
from governor.run_file import check_language_models
from governor.run_file.check_language_models import HTTPEnvironmentParams, LanguageModelParams
from governor.run_file.load import parse
from governor.run_file.plain_data import simulations
from governor.units.sections import spell
from tests.support.run_files import faults_in

MODEL = {"entry": "openai:Qwen/Qwen3-8B", "params": {"base_url": "http://127.0.0.1:1/v1"}}
GAME = {"entry": "http://127.0.0.1:1/base"}


def run(*, agent=MODEL, environment=GAME, agents=None, **simulate):
    return {
        "name": "t",
        "conductors": {"environments": {"game": environment}, "agents": {"model": agent, **(agents or {})}},
        "phases": [
            {
                "name": "play",
                "simulate": {
                    "environment": "game", "agents": ["model"], "episodes": 3, "transport": "in_process", **simulate,
                },
            }
        ],
    }  # fmt: skip


def faults(**more):
    return {spell(path): message for path, message in faults_in(run(**more))}


def with_params(section, **params):
    return {**section, "params": {**section.get("params", {}), **params}}


def test_a_good_one_has_no_faults_and_no_conductors_but_the_simulation():
    assert faults() == {}
    assert [made.name for made in parse(run()).to_plan("u").conductors] == ["simulation"]
    unused = run(agents={"other": MODEL})
    assert [made.name for made in parse(unused).to_plan("u").conductors] == ["simulation"]


@pytest.mark.parametrize(
    ("more", "place", "says"),
    [
        ({"transport": "conductors"}, "phases[0].simulate", "transport: in_process"),
        (
            {"environment": {"entry": "gymnasium:CartPole-v1"}},
            "phases[0].simulate.environment",
            "speaks numbers",
        ),
        ({"agent": {"entry": "a:B"}}, "phases[0].simulate.agents", "openai:MODEL"),
        (
            {"agents": {"b": {"entry": "a:B"}, "other": MODEL}, "agents_of": ["model", "b"]},
            "phases[0].simulate.agents",
            "plays alone",
        ),
        ({"environment": {**GAME, "vector": 2}}, "phases[0].simulate.environment", "'vector'"),
        ({"environment": {**GAME, "wrappers": ["m:W"]}}, "phases[0].simulate.environment", "'wrappers'"),
        (
            {"environment": with_params(GAME, ids=2), "workers": 3},
            "phases[0].simulate.workers",
            "3 workers need as many ids",
        ),
        ({"environment": {"entry": "http://:1"}}, "conductors.environments.game.entry", "is no address"),
    ],
)
def test_a_wrong_combination_is_named_with_a_right_one(more, place, says):
    simulate = {"agents": more.pop("agents_of")} if "agents_of" in more else {}
    data = run(**more)
    data["phases"][0]["simulate"] |= simulate
    found = {spell(path): message for path, message in faults_in(data)}
    assert says in found[place]


def test_it_is_evaluated_but_has_no_checkpoints():
    data = run()
    data["phases"][0] |= {"mode": "train", "evaluate": {"every": 1, "episodes": 2}}
    assert list(faults_in(data)) == []
    data["phases"][0]["checkpoint"] = {"last": True}
    ((path, message),) = faults_in(data)
    assert spell(path) == "phases[0].checkpoint"
    assert "agent 'model' is a language model: no state of it is here to keep" in message


def test_a_language_model_is_no_player_among_several():
    data = run(agents={"walker": {"entry": "a:B"}})
    data["phases"][0]["simulate"]["agents"] = {"left": "walker", "right": "model"}
    conductors = data["conductors"]
    found = check_language_models.faults(conductors["environments"], conductors["agents"], simulations(data))
    assert "plays alone" in str(list(found))


@pytest.mark.parametrize(
    ("params", "place", "says"),
    [
        ({"base_url": None}, "base_url", "must be"),
        ({"base_url": "localhost"}, "base_url[0]", "is no base URL"),
        ({"base_url": []}, "base_url", "at least 1"),
        ({"api_key_env": "sk-1234"}, "api_key_env", "not the secret itself"),
        ({"temperatur": 1.0}, "temperatur", "did you mean 'temperature'?"),
        ({"temperature": -1.0}, "temperature", "greater than or equal to 0"),
        ({"timeout": "soon"}, "timeout", "duration"),
        ({"concurrency": 0}, "concurrency", "greater than or equal to 1"),
        ({"retries": "2"}, "retries", "must be a whole number"),
        ({"extra": {"stream": True}}, "extra", "'stream' is nothing for 'extra'"),
    ],
)
def test_params_of_a_model(params, place, says):
    found = faults(agent=with_params(MODEL, **params))
    assert says in found[f"conductors.agents.model.params.{place}"]
    assert "1234" not in str(found)


def test_a_model_needs_an_address():
    assert "'base_url' is missing" in str(faults(agent={"entry": "openai:m"}))


@pytest.mark.parametrize("ids", [0, -1, True, [], ["a", "a"], [1, "1"], [""], "all"])
def test_ids_are_a_number_or_a_list(ids):
    found = faults(environment=with_params(GAME, ids=ids))
    assert "how many ids" in found["conductors.environments.game.params.ids"]


def test_the_id_of_an_episode():
    def played(**params):
        return [HTTPEnvironmentParams(**params).id_of(episode) for episode in range(4)]

    assert played() == ["0", "1", "2", "3"]
    assert played(ids=2) == ["0", "1", "0", "1"]
    assert played(ids=["a", 7, "b"]) == ["a", "7", "b", "a"]


def test_one_base_url_or_several():
    assert LanguageModelParams(base_url="http://a/v1/").base_url == ("http://a/v1",)
    assert LanguageModelParams(base_url=["http://a", "http://b"]).base_url == ("http://a", "http://b")


# what only the code, and the place, can tell

CODE = """
class Text:
    def get_task_prompt(self): ...
    def step(self, action): ...

class Numbers:
    observation_space = action_space = None
    def reset(self, *, seed=None): ...
    def step(self, action): ...

def either(**params): ...
"""
FILE = """\
name: t
conductors:
  environments: {{game: {{entry: "{entry}"}}}}
  agents:
    model: {{entry: "{agent}", params: {params}}}
phases:
  - {{name: play, simulate: {{environment: game, agents: [model], episodes: 3, transport: in_process}}}}
"""


def check_of(folder, *, entry, agent="openai:m", params='{base_url: "http://127.0.0.1:9/v1"}'):
    (folder / "worlds.py").write_text(CODE)
    (folder / "run.yaml").write_text(FILE.format(entry=entry, agent=agent, params=params))
    done = CliRunner().invoke(cli, ["check", str(folder / "run.yaml")], prog_name="governor")
    return re.sub(r"\s+", " ", done.output)


@pytest.mark.parametrize(
    ("entry", "agent", "says"),
    [
        ("worlds:Text", "openai:m", "no faults"),
        ("worlds:either", "openai:m", "no faults"),
        ("http://127.0.0.1:9", "openai:m", "no faults"),  # nobody is there: that is no fault of the file
        ("worlds:Numbers", "openai:m", "'worlds:Numbers' has no get_task_prompt"),
        ("worlds:Nothing", "openai:m", "has no 'Nothing'"),
        ("worlds:Text", "worlds:either", "speaks text: it needs an agent with the entry 'openai:MODEL'"),
        ("worlds:Numbers", "worlds:either", "no faults"),
    ],
)
def test_classes_show_whether_they_speak_text(tmp_path, entry, agent, says):
    params = {} if agent == "openai:m" else {"params": "{}"}
    assert says in check_of(tmp_path, entry=entry, agent=agent, **params)


def test_a_key_that_is_not_there_is_a_fault_here(tmp_path, monkeypatch):
    params = '{base_url: "http://127.0.0.1:9/v1", api_key_env: A_KEY_OF_MINE}'
    monkeypatch.delenv("A_KEY_OF_MINE", raising=False)
    assert "the environment variable A_KEY_OF_MINE is not set here: export it" in check_of(
        tmp_path, entry="worlds:Text", params=params
    )
    monkeypatch.setenv("A_KEY_OF_MINE", "x")
    assert "no faults" in check_of(tmp_path, entry="worlds:Text", params=params)

"""What a run file says of its simulations: transports, vectors, players, and the commands that come of them."""

import pytest
import yaml

from governor.messages import Made
from governor.run_file import load
from governor.run_file.entry_check import of_data
from governor.runs.assignment import Assignment
from governor.units.sections import spell
from states.plan import ConductorPlan
from tests.support.run_files import GOOD, faults_in

IN_PROCESS = GOOD.replace("episodes: 400,", "episodes: 400, transport: in_process,")


def test_environments_and_agents_in_process_have_no_conductor():
    run = load.parse(yaml.safe_load(IN_PROCESS))
    names = [conductor.name for conductor in run.to_plan("u1").conductors]
    assert names == ["simulation", "tasks"]
    both = yaml.safe_load(IN_PROCESS)
    both["conductors"]["agents"]["other"] = both["conductors"]["agents"]["walker"]
    both["phases"].append({"name": "more", "simulate": {**SIMULATE, "agents": ["other"]}})
    names = [conductor.name for conductor in load.parse(both).to_plan("u1").conductors]
    assert names == ["environment.lake", "agent.other", "simulation", "tasks"]


SIMULATE = {"environment": "lake", "agents": ["walker"], "episodes": 5}


def test_the_command_of_a_phase_in_process_names_what_to_build():
    run = load.parse(yaml.safe_load(IN_PROCESS))
    command = Assignment(uid="u1", run=run, folder=".").simulation(0)
    assert command.transport == "in_process"
    assert command.made_environment == Made(entry="gymnasium:FrozenLake-v1", params={"is_slippery": False})
    assert command.made_agents == (Made(entry="q_learner:QLearner", params={"alpha": 0.5}),)
    command = Assignment(uid="u1", run=load.parse(yaml.safe_load(GOOD)), folder=".").simulation(0)
    assert (command.transport, command.made_environment, command.made_agents) == ("conductors", None, ())


ON_RAY = GOOD.replace("workers: 2,", "workers: 9, transport: ray, chunk: 5,").split("  - name: analyse")[0]


def test_a_simulation_on_ray_is_the_task_conductors_and_needs_no_other():
    data = yaml.safe_load(ON_RAY)
    assert faults_in(data) == []
    run = load.parse(data)
    plan = run.to_plan("u1")
    assert plan.conductors == (ConductorPlan(name="tasks", kind="task"),)
    assert plan.phases[0].conductor_of("simulation") == "tasks"
    command = Assignment(uid="u1", run=run, folder=".").simulation(0)
    assert (command.transport, command.chunk) == ("ray", 5)
    assert command.made_environment == Made(entry="gymnasium:FrozenLake-v1", params={"is_slippery": False})
    assert command.made_agents == (Made(entry="q_learner:QLearner", params={"alpha": 0.5}),)


def test_an_agent_may_learn_elsewhere_and_play_on_ray():
    data = yaml.safe_load(GOOD)
    data["phases"].append(
        {"name": "evaluate", "mode": "eval", "simulate": {**SIMULATE, "transport": "ray", "workers": 100}}
    )
    assert faults_in(data) == []
    plan = load.parse(data).to_plan("u1")
    assert [phase.conductor_of("simulation") for phase in plan.phases] == [
        "simulation",
        "simulation",
        "tasks",
    ]
    assert [conductor.name for conductor in plan.conductors] == [
        "environment.lake", "agent.walker", "simulation", "tasks",
    ]  # fmt: skip


def test_chunks_are_for_ray_and_a_vector_is_not():
    data = yaml.safe_load(ON_RAY.replace("transport: ray", "transport: in_process"))
    assert faults_in(data) == [
        (("phases", 0, "simulate", "chunk"), "has no meaning without 'transport: ray'")
    ]
    data = yaml.safe_load(ON_RAY.replace("pool: 4", "vector: 16"))
    [(path, said)] = faults_in(data)
    assert spell(path) == "phases[0].simulate.environment"
    assert said.endswith("which is not for transport: ray")


def test_workers_in_process_need_no_pool():
    many = yaml.safe_load(IN_PROCESS.replace("workers: 2", "workers: 9"))
    assert faults_in(many) == []
    many["phases"][0]["simulate"]["transport"] = "conductors"
    assert [spell(path) for path, _ in faults_in(many)] == ["phases[0].simulate.workers"]


def test_staleness_is_for_conductors():
    for text in (IN_PROCESS, ON_RAY):
        data = yaml.safe_load(text.replace("transport:", "max_staleness: 3, transport:"))
        [(path, said)] = faults_in(data)
        assert spell(path) == "phases[0].simulate.max_staleness"
        assert said.startswith("has no meaning with 'transport: ")


def test_a_vector_plays_on_either_transport():
    many = yaml.safe_load(IN_PROCESS.replace("pool: 4", "vector: 16"))
    assert faults_in(many) == []
    command = Assignment(uid="u1", run=load.parse(many), folder=".").simulation(0)
    assert command.made_environment.vector == 16
    many["phases"][0]["simulate"] |= {"transport": "conductors", "workers": 1}
    many["phases"][0]["simulate"]["max_staleness"] = 3
    assert faults_in(many) == []
    command = Assignment(uid="u1", run=load.parse(many), folder=".").simulation(0)
    assert (command.vector, command.max_staleness, command.made_environment) == (16, 3, None)


def test_a_vector_may_be_a_section_with_its_mode():
    data = yaml.safe_load(IN_PROCESS.replace("pool: 4", "vector: {num_envs: 64, mode: native}"))
    assert faults_in(data) == []
    made = Assignment(uid="u1", run=load.parse(data), folder=".").simulation(0)
    assert (made.vector, made.made_environment.vector, made.made_environment.vector_mode) == (
        64,
        64,
        "native",
    )
    data["phases"][0]["simulate"] |= {"transport": "conductors", "workers": 1}
    assert faults_in(data) == []
    made = Assignment(uid="u1", run=load.parse(data), folder=".").simulation(0)
    assert (made.vector, made.vector_mode, made.made_environment) == (64, "native", None)
    data["phases"][0]["simulate"]["transport"] = "ray"
    data["conductors"]["environments"]["lake"]["vector"]["num_envs"] = 1
    [(path, said), *_] = faults_in(data)
    assert spell(path) == "phases[0].simulate.environment"
    assert said == "environment 'lake' has a 'vector', which is not for transport: ray"


@pytest.mark.parametrize(
    "given", ["true", "0", "1025", "{num_envs: 0}", "{mode: async}", "{num_envs: 4, mode: [native]}"]
)
def test_what_is_no_vector(given):
    found = faults_in(yaml.safe_load(IN_PROCESS.replace("pool: 4", f"vector: {given}")))
    assert [spell(path).startswith("conductors.environments.lake.vector") for path, _ in found] == [True]


def test_a_native_vector_is_called_with_the_number_of_its_environments():
    def params_of(entry, mode):
        section = {"entry": entry, "params": {"size": 3}, "vector": {"num_envs": 4, "mode": mode}}
        [found] = of_data({"conductors": {"environments": {"lake": section}}})
        return set(found.params)

    assert params_of("mine:Walks", "native") == {"size", "num_envs"}
    assert params_of("mine:Walks", "async") == {"size"}
    assert params_of("gymnasium:CartPole-v1", "native") == {"size"}


PLAYERS = IN_PROCESS.replace("    walker:", "    runner: {entry: 'q_learner:QLearner'}\n    walker:").replace(
    "agents: [walker]", "agents: {red: walker, blue: runner, green: walker}"
)


def test_agents_may_be_given_for_each_player():
    run = load.parse(yaml.safe_load(PLAYERS))
    assert load.parse(run.raw()) == run
    command = Assignment(uid="u1", run=run, folder=".").simulation(0)
    assert command.agents == ("walker", "runner")
    assert command.players == {"red": "walker", "blue": "runner", "green": "walker"}
    assert [made.params for made in command.made_agents] == [{"alpha": 0.5}, {}]
    assert [one.name for one in run.to_plan("u1").conductors] == ["simulation", "tasks"]


def test_several_agents_play_in_process_and_through_conductors():
    for agents in (["walker", "runner"], {"red": "walker"}):
        many = yaml.safe_load(PLAYERS)
        many["phases"][0]["simulate"]["agents"] = agents
        assert faults_in(many) == []
        many["phases"][0]["simulate"]["transport"] = "conductors"
        assert faults_in(many) == []
        many["phases"][0]["simulate"]["transport"] = "ray"
        ((path, said),) = faults_in(many)
        assert spell(path) == "phases[0].simulate.agents"
        assert said == "are for several players: that needs transport: conductors or in_process"


def test_several_agents_and_a_vector_do_not_go_together():
    ((path, said),) = faults_in(yaml.safe_load(PLAYERS.replace("pool: 4", "vector: 4")))
    assert spell(path) == "phases[0].simulate.agents"
    assert said == "are for several players: their environment can have no 'vector'"


@pytest.mark.parametrize(
    ("agents", "path", "said"),
    [
        ({}, "agents", "must have at least 1 item"),
        ({"red": "wolker"}, "agents.red", "unknown agent 'wolker'; did you mean 'walker'?"),
        ({"red": 3}, "agents.red", "must be a text, not 3"),
        ({1: "walker"}, "agents[1]", "must be a text, not 1"),
        (["walker", 3], "agents[1]", "must be a text, not 3"),
        ("walker", "agents", "must be a list, not the text 'walker'"),
        (
            ["walker", "walker"],
            "agents[1]",
            "agent 'walker' stands twice; say whom it plays: {player: walker}",
        ),
    ],
)
def test_faults_of_agents(agents, path, said):
    many = yaml.safe_load(PLAYERS)
    many["phases"][0]["simulate"]["agents"] = agents
    found = [(spell(path), said) for path, said in faults_in(many)]
    assert found == [(f"phases[0].simulate.{path}", said)]


def test_an_agent_of_a_player_has_one_transport():
    both = yaml.safe_load(PLAYERS)
    both["phases"].append({"name": "more", "simulate": SIMULATE})
    ((path, said),) = faults_in(both)
    assert spell(path) == "phases[2].simulate.agents[0]"
    assert "it must be one" in said


def test_an_agent_has_one_transport():
    both = yaml.safe_load(IN_PROCESS)
    both["phases"].append({"name": "more", "simulate": SIMULATE})
    ((path, said),) = faults_in(both)
    assert spell(path) == "phases[2].simulate.agents[0]"
    assert said == (
        "agent 'walker' plays with transport: conductors here and with in_process in phases[0]; it must be one"
    )

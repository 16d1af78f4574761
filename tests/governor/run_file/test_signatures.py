"""What a run will call is compared with its signature; what would run is never refused."""

import functools
from dataclasses import dataclass

import gymnasium
import pydantic
import pytest
from gymnasium.spaces import Discrete

from governor.run_file import signatures
from governor.tasks.runner_process import calls


def swapped(function):
    """A decorator that shows the signature of what it wraps, and takes others."""

    @functools.wraps(function)
    def call(**given):
        return function(seed=given["x"])

    return call


def plain(seed, size=3): ...
def anything(*args, **more): ...
def asks(context, inputs, seed): ...
async def later(seed): ...
@swapped
def decorated(seed): ...
def by_place(seed, /, size): ...


class Keeps:
    def __init__(self, seed):
        self.seed = seed

    def run(self, inputs): ...


class Sets:
    def __init__(self, seed):
        self.run = functools.partial(self.run, seed)

    def run(self, seed, inputs): ...


class Called:
    def __call__(self): ...


class Meta(type):
    def __call__(cls, **given):
        return super().__call__(given)


class Odd(metaclass=Meta):
    def __init__(self, given): ...
    def run(self): ...


class New:
    def __new__(cls, **given):
        return super().__new__(cls)

    def run(self): ...


@dataclass
class Data:
    seed: int
    size: int = 3

    def run(self): ...


class Model(pydantic.BaseModel):
    seed: int = pydantic.Field(alias="x")

    def run(self): ...


@pydantic.dataclasses.dataclass
class Strict:
    seed: int
    size: int = 3

    def run(self): ...


class Bound:
    def call(self, seed): ...


RUNS = [
    (plain, {"seed": 1}),
    (anything, {"a": 1}),
    (asks, {"seed": 1}),
    (asks, {"seed": 1, "inputs": 2}),
    (later, {"seed": 1}),
    (decorated, {"x": 1}),
    (functools.partial(plain, 1), {"size": 2}),
    (functools.partial(plain, seed=1), {}),
    (functools.partial(plain, seed=1), {"seed": 2}),
    (Keeps, {"seed": 1}),
    (functools.partial(Keeps, 1), {}),
    (Keeps(1), {}),
    (Sets, {"seed": 1}),
    (Called, {}),
    (Called(), {}),
    (Odd, {"a": 1}),
    (New, {"a": 1}),
    (Data, {"seed": 1}),
    (Model, {"x": 1}),
    (Strict, {"seed": 1}),
    (Bound().call, {"seed": 1}),
    (dict, {"a": 1}),
    (int, {}),
    (functools.lru_cache(plain), {"seed": 1}),
]


@pytest.mark.parametrize(("call", "args"), RUNS)
def test_a_task_that_runs_is_not_refused(call, args):
    offers = {"inputs": dict, "context": object}
    calls.call_it(call, args=args, offers=offers)
    assert signatures.of_task(call, [*args], name="it") == ()


class Wants:
    def run(self, steps): ...


@pytest.mark.parametrize(
    ("call", "args", "faults"),
    [
        (plain, {}, [("", "it needs 'seed'")]),
        (asks, {}, [("", "it needs 'seed'")]),
        (
            plain,
            {"seed": 1, "a": 2, "siez": 3},
            [
                ("a", "it takes no 'a' (it takes seed, size)"),
                ("siez", "it takes no 'siez'; did you mean 'size'? (it takes seed, size)"),
            ],
        ),
        (plain, {"sed": 1}, [("sed", "it takes no 'sed'; did you mean 'seed'? (it takes seed, size)")]),
        (Called, {"a": 1}, [("a", "it takes no 'a' (it takes none)")]),
        (Data, {"size": 1}, [("", "it needs 'seed'")]),
        (Keeps(1), {"a": 1}, [("a", "it takes no 'a' (it takes none)")]),
        (functools.partial(plain, size=1), {}, [("", "it needs 'seed'")]),
        (
            Wants,
            {},
            [("", "it.run() is given nothing but inputs and context: missing a required argument: 'steps'")],
        ),
    ],
)
def test_a_task_that_cannot_be_called_is_refused(call, args, faults):
    with pytest.raises(TypeError):
        calls.call_it(call, args=args, offers={"inputs": dict, "context": object})
    assert signatures.of_task(call, [*args], name="it") == tuple(faults)


def test_arguments_by_place_are_left_to_the_call():
    assert signatures.of_task(by_place, ["size"], name="it") == ()


# -- agents ---------------------------------------------------------------------------------------------------


class Agent:
    def __init__(self, observation_space, action_space, seed, rate=0.1, context=None): ...
    def act(self, observation, explore): ...
    def learn(self, transition): ...


class Loose:
    def __init__(self, **given): ...
    def act(self, observation, **more): ...
    def act_many(self, observations, *, explore=True): ...
    def learn(self, *given): ...
    def metrics(self): ...
    def state_dict(self): ...
    def load_state_dict(self, state, strict=1): ...


class ForPlayers(Loose):
    def act(self, observation, *, explore, player, action_mask=None, worker=0): ...
    def learn(self, transition, player): ...


class Finds:
    """As a module of torch."""

    def __init__(self, **given):
        self.__dict__["things"] = given

    def __getattr__(self, name):
        return lambda *_, **__: name


class SetsAct:
    def __init__(self, **given):
        self.act = lambda observation, explore: 0


class Scripted:
    def __init__(self, **given): ...

    @swapped
    def act(self, observation): ...


@pytest.mark.parametrize("made", [Agent, Loose, ForPlayers, Finds, SetsAct, Scripted, anything, dict])
def test_an_agent_that_plays_is_not_refused(made):
    assert signatures.of_agent(made, [], name="it") == ()


def agent(**methods):
    def init(self, observation_space, action_space, seed): ...
    def act(self, observation, *, explore): ...

    return type("Made", (), {"__init__": init, "act": act, **methods})


@pytest.mark.parametrize(
    ("made", "params", "at", "says"),
    [
        (Agent, ["rat"], "rat", "takes no 'rat'; did you mean 'rate'? (it takes rate)"),
        (Agent, ["seed"], "seed", "'seed' is given by the run itself: leave it out"),
        (plain, [], "", "takes no observation_space, action_space: it is built with observation_space, action_"),
        (agent(act=None), [], "", ""),
        (agent(act=lambda self, observation: 0), [], "", "act: got an unexpected keyword argument 'explore'; write act("),
        (agent(act=lambda self, *, explore: 0), [], "", "act: too many positional arguments"),
        (agent(learn=lambda self, o, a, r, n, d: 0), [], "", "learn: missing a required argument: 'a'; write learn(self, tr"),
        (agent(act_many=lambda self, o: 0), [], "", "act_many: got an unexpected keyword argument 'explore'"),
        (agent(metrics=lambda self, since: 0), [], "", "metrics: missing a required argument: 'since'"),
        (agent(state_dict=lambda self, full: 0), [], "", "state_dict: missing a required argument: 'full'"),
        (agent(load_state_dict=lambda self: 0), [], "", "load_state_dict: too many positional arguments"),
        (agent(begin=lambda self: 0), [], "", "begin: too many positional arguments"),
        (agent(end=lambda self, number, outcome: 0), [], "", "missing a required argument: 'outcome'"),
        (agent(reset_states=lambda self: 0), [], "", "write reset_states(self, worker)"),
        (agent(learn_batch=lambda self, *, rollout: 0), [], "", "write learn_batch(self, rollout)"),
    ],
)  # fmt: skip
def test_an_agent_that_cannot_play_is_refused(made, params, at, says):
    found = signatures.of_agent(made, params, name="it")
    if not says:
        assert found == (), "an attribute that is there may be replaced"
        return
    [(argument, message), *_] = found
    assert argument == at
    assert says in message


def test_a_class_without_act_is_refused():
    assert signatures.of_agent(type("Mute", (Loose,), {}), [], name="it") == ()
    [(_, message)] = signatures.of_agent(type("Mute", (), {"__init__": anything}), [], name="it")
    assert message == "it has no act: act(self, observation, *, explore) returns an action"


# -- environments ---------------------------------------------------------------------------------------------


class Room(gymnasium.Env):
    def __init__(self, size=3):
        self.size = size
        self.observation_space = self.action_space = Discrete(size)

    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...


class OldRoom(Room):
    def reset(self): ...


class Unfinished(gymnasium.Env):
    def reset(self, *, seed=None, options=None): ...


class Spaceless:
    def reset(self, seed): ...
    def step(self, action): ...


def says(made, *params, wrapped=False):
    found = signatures.of_environment(made, params, name="it", wrapped=wrapped)
    return [message for _, message in found]


def test_what_an_environment_lacks():
    assert says(Room) == says(Room, "size") == says(anything, "a") == []
    assert says(Room, "sizes") == ["it takes no 'sizes'; did you mean 'size'? (it takes size)"]
    [old] = says(OldRoom)
    assert old.startswith("it has a reset() that takes no seed: reset(self, *, seed=None, options=None)")
    assert says(Unfinished) == ["it has no step, observation_space, action_space"]
    assert says(Spaceless) == ["it has no observation_space, action_space"]
    assert says(type("Steps", (Room,), {"step": lambda self: 0})) == [
        "it cannot be called as a run does: step takes one action: step(self, action)"
    ]


def test_what_a_wrapped_environment_lacks_may_be_the_wrappers():
    assert says(OldRoom, wrapped=True) == says(Spaceless, wrapped=True) == []
    assert says(OldRoom, "a", wrapped=True) == ["it takes no 'a' (it takes size)"]


def test_a_wrapper_gets_the_environment_and_its_params():
    stack = gymnasium.wrappers.FrameStackObservation
    assert signatures.of_wrapper(stack, ["stack_size"], name="it") == ()
    assert signatures.of_wrapper(stack, [], name="it") == (("", "it needs 'stack_size'"),)
    [(at, message)] = signatures.of_wrapper(stack, ["stak_size"], name="it")
    assert (at, "did you mean 'stack_size'?" in message) == ("stak_size", True)
    assert signatures.of_wrapper(lambda: 0, [], name="it") == (
        ("", "it takes no environment as its first argument"),
    )
    [(at, _)] = signatures.of_wrapper(stack, ["env", "stack_size"], name="it")
    assert at == "env"

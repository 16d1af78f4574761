import os
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict
from typing import NamedTuple

import numpy as np
import pytest

from governor.episodes.records import state_file
from governor.errors import ConductorError
from tests.support import stand_in_torch


def test_what_agents_keep_comes_back(tmp_path):
    state = {
        "table": np.arange(6.0).reshape(2, 3),
        "visits": {(0, 1): 3, 7: 1, "x": None},
        "rng": np.random.default_rng(1).bit_generator.state,
        "big": -(2**200),
        "mixed": [1, 2.5, True, b"raw", (1, (2,)), {3, 4}, np.float32(0.5)],
    }
    path = tmp_path / "agents" / "a.state"
    state_file.save(path, state)
    back = state_file.load(path)
    assert (back.pop("table") == state.pop("table")).all()
    assert back == state
    assert [file.name for file in path.parent.iterdir()] == ["a.state"]


def test_a_restored_generator_goes_on_where_it_was():
    first, second = np.random.default_rng(1), np.random.default_rng(2)
    first.random(3)
    second.bit_generator.state = state_file.loads(state_file.dumps({"s": first.bit_generator.state}))["s"]
    assert first.random() == second.random()


def test_what_cannot_be_kept_is_named_and_the_old_file_stays(tmp_path):
    path = tmp_path / "a.state"
    state_file.save(path, {"n": 1})
    with pytest.raises(TypeError, match=r"state_dict\(\)\['net'\]\[0\] is a function"):
        state_file.save(path, {"net": [lambda: 0]})
    assert state_file.load(path) == {"n": 1}


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"\x81\xa1a\x01", state_file._encode({"version": 9, "state": {}})]
)
def test_a_file_that_is_no_state_is_refused(tmp_path, data):
    path = tmp_path / "a.state"
    path.write_bytes(data)
    with pytest.raises(ConductorError, match="cannot be read"):
        state_file.load(path)


@pytest.mark.timeout(30)
def test_a_state_that_is_a_fifo_holds_nobody_up(tmp_path):
    os.mkfifo(path := tmp_path / "a.state")
    for read in (state_file.load, state_file.learned):
        with pytest.raises(ConductorError, match=r"cannot be read: .*it is no regular file"):
            read(path)
    assert state_file.weight_version(path) == 0


def test_no_file_is_no_state(tmp_path):
    assert state_file.load(tmp_path / "none") is None


@pytest.mark.parametrize("pairs", [[[1]], [[1, 2, 3]], [7], 7, [[[], 1]]])
def test_pairs_that_are_none_are_refused(pairs):
    data = state_file._encode(
        {"version": 1, "state": {"visits": state_file._extension(state_file.PAIRS, pairs, location="")}}
    )
    with pytest.raises(ConductorError, match="no agent's state"):
        state_file.loads(data)


def test_a_nest_that_is_too_deep_is_refused():
    data = state_file._encode({})
    for _ in range(2000):
        data = state_file._encode(state_file.msgspec.msgpack.Ext(state_file.TUPLE, b"\x91" + data))
    with pytest.raises(ConductorError, match="no agent's state"):
        state_file.loads(data)


class Point(NamedTuple):
    x: int
    y: int


class Bag(dict):
    pass


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"at": Point(1, 2)}, r"state_dict\(\)\['at'\] is a Point, which would be restored as a tuple"),
        (
            {"q": [defaultdict(float)]},
            r"state_dict\(\)\['q'\]\[0\] is a defaultdict, .* plain dict, and make it a",
        ),
        (Bag(a=1), r"state_dict\(\) is a Bag, which would be restored as a dict"),
        (["a"], r"state_dict\(\) is a list, not a dict"),
        (
            {"net": [np.str_("a")]},
            r"state_dict\(\)\['net'\]\[0\] is a str_, .* plain str, and make it a str_",
        ),
        (
            {"raw": np.bytes_(b"a")},
            r"state_dict\(\)\['raw'\] is a bytes_, which would be restored as a bytes",
        ),
        ({"n": {np.str_("a"): 1}}, r"state_dict\(\)\['n'\] key is a str_, which would be restored as a str"),
        ({"n": {np.str_("a")}}, r"state_dict\(\)\['n'\] key is a str_, which would be restored as a str"),
        ({"f": np.array([object()])}, r"state_dict\(\)\['f'\]: an array of object"),
    ],
)
def test_what_would_come_back_as_something_else_is_named(state, said):
    with pytest.raises(TypeError, match=said):
        state_file.dumps(state)


def nested(levels):
    """A list in a list, and so on."""
    state = []
    for _ in range(levels):
        state = [state]
    return state


def containing_itself():
    shared, tree = {"leaf": 1}, {"children": []}
    tree["children"] += [shared, shared, {"parent": (tree,)}]
    return {"shared": shared, "tree": tree}


def of_itself():
    state = {}
    state["self"] = state
    return state


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            containing_itself(),
            r"^state_dict\(\)\['tree'\]\['children'\]\[2\]\['parent'\]\[0\] is state_dict\(\)\['tree'\] itself: ",
        ),
        (of_itself(), r"^state_dict\(\)\['self'\] is state_dict\(\) itself: "),
        (
            {"flat": [1], "deep": nested(50_000)},
            r"^state_dict\(\)\['deep'\] is nested 50,001 levels deep, which cannot be saved$",
        ),
    ],
    ids=["cycle", "whole", "deep"],
)
@pytest.mark.parametrize("dumps", [state_file.dumps, state_file.dumps_verified])
def test_a_state_without_an_end_is_named_with_its_location(state, said, dumps):
    with pytest.raises(TypeError, match=said):
        dumps(state)


def test_classes_of_containers_come_back():
    state = {
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
        "milestones": Counter({30: 2, 80: 1}),
        "seen": {frozenset({(1, 2), (3, 4)}): "pair"},
        "names": {f"name {number}" for number in range(100)},
        "nan": float("nan"),
    }
    back = state_file.loads(state_file.dumps_verified(state))
    assert repr(back.pop("nan")) == repr(state.pop("nan"))
    assert back == state
    assert list(back["ordered"]) == ["b", "a"]
    assert [type(value) for value in back.values()] == [type(value) for value in state.values()]
    assert type(next(iter(back["seen"]))) is frozenset


def test_what_cannot_be_read_back_is_told_by_the_trial(monkeypatch):
    monkeypatch.setitem(state_file._MADE, state_file.TUPLE, list)
    with pytest.raises(TypeError, match="would be restored as something else"):
        state_file.dumps_verified({"a": (1, 2)})
    monkeypatch.delitem(state_file._MADE, state_file.TUPLE)
    with pytest.raises(TypeError, match="cannot be read back: it is no agent's state: msgpack extension 2"):
        state_file.dumps_verified({"a": (1, 2)})


def test_what_is_too_long_for_the_format_is_named(monkeypatch):
    monkeypatch.setattr(state_file, "LONGEST", 100)
    with pytest.raises(TypeError, match=r"state_dict\(\)\['opt'\] takes .* 4 GiB"):
        state_file.dumps({"opt": {0: b"x" * 100}})


@pytest.fixture(params=["torch", "stand-in"])
def torch(request, monkeypatch):
    if request.param == "torch":
        return pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "torch", stand_in_torch)
    return stand_in_torch


def test_tensors_come_back_as_tensors(torch):
    state = {
        "net": {"bias": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "none": torch.empty((0, 3))},
        "opt": {0: {"step": torch.tensor(3.0), "moments": (torch.tensor([[True, False]]), [])}},
    }
    back = state_file.loads(state_file.dumps_verified(state))
    assert back["opt"].keys() == {0}
    for given, found in (
        (state["net"]["bias"], back["net"]["bias"]),
        (state["net"]["none"], back["net"]["none"]),
        (state["opt"][0]["step"], back["opt"][0]["step"]),
        (state["opt"][0]["moments"][0], back["opt"][0]["moments"][0]),
    ):
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, tuple(found.shape)) == (given.dtype, tuple(given.shape))
        assert found.tolist() == given.tolist()


def test_a_tensor_that_is_no_block_of_numbers_is_named(torch):
    with pytest.raises(
        TypeError, match=r"state_dict\(\)\['net'\]\[1\]: a tensor of torch.float32, torch.sparse"
    ):
        state_file.dumps({"net": [1, torch.tensor([1.0]).to_sparse()]})
    with pytest.raises(TypeError, match=r"state_dict\(\)\['opt'\] has a Tensor as a key"):
        state_file.dumps({"opt": {torch.tensor([1.0]): 1}})


@pytest.mark.parametrize("damage", ["name", "shape", "length", "header"])
def test_bytes_that_are_no_tensor_are_refused(torch, damage):
    data = state_file.tensors.pack(torch.tensor([1.0, 2.0], dtype=torch.float32))
    data = {
        "name": data.replace(b"float32", b"strided"),
        "shape": data.replace(b"\x91\x02", b"\x91\x03"),
        "length": data[:-1],
        "header": b"\x01\x00" + data[2:],
    }[damage]
    with pytest.raises(state_file.WireError, match="tensor"):
        state_file.tensors.unpack(memoryview(data))


def test_real_modules_optimizers_and_schedules_go_on_where_they_were():
    torch = pytest.importorskip("torch")

    def make():
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
        net[2].weight = net[0].weight
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        return net, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 3])

    def train(parts):
        net, optimizer, schedule = parts
        optimizer.zero_grad()
        (net(torch.arange(8.0).reshape(2, 4)) ** 2).sum().backward()
        optimizer.step()
        schedule.step()

    first, second = make(), make()
    train(first)
    state = {str(number): part.state_dict() for number, part in enumerate(first)}
    state |= {
        "rng": torch.get_rng_state(),
        "half": first[0][0].weight.bfloat16(),
        "turned": torch.ones(2, 3).T,
    }
    back = state_file.loads(state_file.dumps_verified(state))
    assert back["half"].dtype == torch.bfloat16
    assert back["half"].equal(state["half"])
    assert back["turned"].equal(state["turned"])
    torch.set_rng_state(back["rng"])
    for number, part in enumerate(second):
        part.load_state_dict(back[str(number)])
    train(first)
    train(second)
    for one, other in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert one.equal(other)


def test_torch_is_not_imported_where_it_is_not_used():
    code = (
        "import sys; from governor.episodes.records import state_file as s;"
        "s.loads(s.dumps_verified({'a': (1, 2.5), 'b': s.np.ones(3)})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_torch_is_missing_the_file_says_so(torch, monkeypatch, tmp_path):
    path = tmp_path / "a.state"
    state_file.save(path, {"net": torch.tensor([1.0])})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ConductorError, match=r"a\.state cannot be read: it holds tensors, and torch does not import here"
    ):
        state_file.load(path)

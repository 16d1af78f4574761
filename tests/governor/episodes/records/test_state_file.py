import numpy as np
import pytest

from governor.episodes.records import state_file
from governor.errors import ConductorError


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


def test_no_file_is_no_state(tmp_path):
    assert state_file.load(tmp_path / "none") is None


@pytest.mark.parametrize("pairs", [[[1]], [[1, 2, 3]], [7], 7, [[[], 1]]])
def test_pairs_that_are_none_are_refused(pairs):
    data = state_file._encode(
        {"version": 1, "state": {"visits": state_file._extension(state_file.PAIRS, pairs)}}
    )
    with pytest.raises(ConductorError, match="no agent's state"):
        state_file.loads(data)


def test_a_nest_that_is_too_deep_is_refused():
    data = state_file._encode({})
    for _ in range(2000):
        data = state_file._encode(state_file.msgspec.msgpack.Ext(state_file.TUPLE, b"\x91" + data))
    with pytest.raises(ConductorError, match="no agent's state"):
        state_file.loads(data)

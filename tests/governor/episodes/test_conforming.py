import numpy as np
import pytest

from governor.episodes.conforming import finite_reward, flag


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.0", "is a str, not a number"),
        (b"1", "is a bytes"),
        (None, "is a NoneType"),
        (float("nan"), "is nan"),
    ],
)
def test_a_reward_is_a_finite_number(value, said):
    with pytest.raises(ValueError, match=said):
        finite_reward(value)
    assert finite_reward(np.float32(0.5)) == finite_reward(np.array([0.5])[0]) == 0.5


@pytest.mark.parametrize("value", ["no", None, 0.5, [True, False]])
def test_a_flag_is_a_bool(value):
    with pytest.raises(ValueError, match=r"truncated is a \w+, not a bool"):
        flag(value, "truncated")
    assert [flag(each, "truncated") for each in (True, np.bool_(True), 1, np.array([1]))] == [True] * 4
    assert not flag(np.False_, "truncated")

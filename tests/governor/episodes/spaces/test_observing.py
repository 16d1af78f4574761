import re

import numpy as np
import pytest

from governor.episodes import spaces
from governor.episodes.spaces import Box, Discrete, MultiBinary, MultiDiscrete, copier, observer


def box(*shape, dtype="<f4"):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Box(shape=shape, dtype=dtype, low=bytes(size), high=bytes(size))


SPACES = [
    Discrete(n=3, start=0),
    box(),
    box(4),
    box(40),
    box(3, 3),
    box(4, dtype="<f2"),
    box(4, dtype="|u1"),
    MultiBinary(shape=(4,)),
    MultiDiscrete(shape=(4,), dtype="<i8", nvec=(2, 2, 2, 2), start=(0, 0, 0, 0)),
]
VALUES = [
    1,
    2.5,
    None,
    "text",
    np.int8(2),
    [1, 0, 1, 0],
    [1.5, 0, 1, 0],
    *(
        np.full(shape, value, dtype)
        for shape in ((), (4,), (40,), (3, 3))
        for dtype in ("<f4", ">f4", "<f8", "<f2", "|u1", "|i1", "<i8")
        for value in (1, 65504 if "f" in dtype else 100)
    ),
    *(
        np.array([bad, other, 0, 0], dtype)
        for bad in (np.nan, np.inf)
        for other in (0, -np.inf)
        for dtype in ("<f4", "<f2")
    ),
    np.full((3, 3), np.nan, np.float32),
    np.full((3, 3), 3e38, np.float32),
    np.full(40, np.nan, np.float32),
    np.arange(80, dtype=np.float32)[::2],
]


@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast", "ignore:overflow encountered in cast")
def test_it_is_the_conformer_of_the_other_transport(space):
    def outcome(conform, value):
        try:
            return conform(value)
        except ValueError as error:
            return str(error)

    for value in VALUES:
        theirs, ours = outcome(spaces.conformer(space), value), outcome(copier(space), value)
        assert type(ours) is type(theirs)
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
        np.testing.assert_array_equal(ours, theirs)
        if isinstance(ours, np.ndarray) and isinstance(value, np.ndarray):
            assert not np.shares_memory(ours, value)


@pytest.mark.parametrize("space", SPACES, ids=repr)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast", "ignore:overflow encountered in cast")
def test_an_observation_comes_with_what_is_recorded_of_it(space):
    for value in VALUES:
        try:
            seen = copier(space)(value)
        except ValueError as error:
            with pytest.raises(ValueError, match=re.escape(str(error))):
                observer(space)(value)
            continue
        again, kept = observer(space)(value)
        np.testing.assert_array_equal(again, seen)
        assert kept == (seen if isinstance(seen, int) else seen.tobytes())

import msgspec
import numpy as np
import pytest

from governor.episodes import arrays
from governor.episodes.arrays import WireError
from governor.episodes.remote import wire


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=">i4"),
        np.arange(6).reshape(2, 3).T,
        np.array(True),
        np.zeros((0, 4), dtype=np.uint8),
        np.array([1 + 2j]),
    ],
)
def test_an_array_comes_back_as_it_was_and_may_be_written(array):
    sent = wire.encode(wire.ObservedFrame(1, array))
    back = wire.decode_answer(sent).observation
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    assert (back == array).all()
    assert back.flags.writeable


def test_a_scalar_step_is_small():
    assert len(wire.encode(wire.StepFrame(3, 2))) == 4
    assert len(wire.encode(wire.SteppedFrame(3, 5, 0.0, False, False))) == 19


def test_objects_do_not_cross():
    with pytest.raises(TypeError, match="not a vector of numbers"):
        wire.encode(wire.StepFrame(1, np.array([object()])))
    with pytest.raises(TypeError):
        wire.encode(wire.StepFrame(1, object()))


def header(dtype, shape, size):
    head = msgspec.msgpack.encode((1, dtype, shape))
    return len(head).to_bytes(2, "little") + head + b"\0" * size


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        header("<f4", (3,), 11),
        header("<f4", (-1,), 4),
        header("|O", (1,), 8),
        header("no", (1,), 8),
        header("<f8", (2**40, 2**40), 8),
        header("|u1", (1,) * 40, 1),
    ],
)
def test_bytes_that_are_no_array_are_refused(data):
    with pytest.raises(WireError):
        arrays.unpack(memoryview(data))
    with pytest.raises(WireError):
        wire.decode_answer(wire.encode(wire.ObservedFrame(1, msgspec.msgpack.Ext(arrays.ARRAY, data))))


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x93\x63\x02\x03", b"\x92\x03"])
def test_other_bytes_are_refused(data):
    for decode in (wire.decode_answer, wire.decode_agent_request, wire.decode_environment_request):
        with pytest.raises(WireError):
            decode(data)


def test_an_environment_takes_no_request_of_an_agent():
    with pytest.raises(WireError):
        wire.decode_environment_request(wire.encode(wire.BeginFrame(1, 0, True)))

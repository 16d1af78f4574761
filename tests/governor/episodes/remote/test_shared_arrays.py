"""Large arrays beside the messages of a channel: written by one process, read by another."""

import fcntl
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from governor.episodes.arrays import WireError
from governor.episodes.remote import shared_arrays, wire
from governor.episodes.remote.shared_arrays import LEAST_BYTES, SHARED, Region

LARGE = np.arange(LEAST_BYTES, dtype=np.float32)


@pytest.fixture
def region():
    made = Region()
    yield made
    made.close()


def sent(region, *arrays):
    return region.encode(wire.ObservedFrame(1, list(arrays)))


def received(data):
    return wire.decode_answer(data).observation


def test_a_large_array_is_not_in_the_second_message_and_comes_back(region):
    assert len(sent(region, LARGE)) > LARGE.nbytes
    data = sent(region, LARGE)
    assert len(data) < 100
    [back] = received(data)
    assert (back.dtype, back.tolist()) == (LARGE.dtype, LARGE.tolist())
    back[0] = 7.0
    assert LARGE[0] == 0.0
    [again] = received(sent(region, LARGE + 1))
    assert (again[0], back[0]) == (1.0, 7.0), "what was received owns its memory"


@pytest.mark.parametrize(
    "array",
    [
        LARGE.astype(">f8"),
        np.asfortranarray(LARGE.reshape(128, 128)),
        LARGE.reshape(128, 128)[::2, ::2].repeat(4, axis=0),
        np.arange(LEAST_BYTES, dtype=np.uint8),
        LARGE > 3,
    ],
)
def test_whatever_its_type_and_order(region, array):
    sent(region, array)
    data = sent(region, array)
    assert len(data) < 100
    [back] = received(data)
    assert (back.shape, back.tolist()) == (array.shape, array.tolist())


def test_of_several_all_are_there_also_while_memory_grows(region):
    for count in (1, 3, 2, 9, 9):
        arrays = [LARGE + place for place in range(count)]
        small = np.arange(3)
        back = received(sent(region, *arrays, small))
        assert [one.tolist() for one in back] == [one.tolist() for one in (*arrays, small)]


def test_another_process_reads_it_and_what_was_closed_is_forgotten(region):
    code = (
        "import sys\n"
        "from governor.episodes.remote import shared_arrays, wire\n"
        "for line in sys.stdin:\n"
        "    [array] = wire.decode_answer(bytes.fromhex(line)).observation\n"
        "    print(int(array.sum()), len(shared_arrays._mapped.regions), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:

        def read(data):
            reader.stdin.write(data.hex() + "\n")
            reader.stdin.flush()
            return [int(word) for word in reader.stdout.readline().split()]

        ones = np.ones(LEAST_BYTES, np.uint8)
        sent(region, ones)
        assert read(sent(region, ones)) == [LEAST_BYTES, 1]
        twice = np.ones(4 * LEAST_BYTES, np.uint8)
        sent(region, twice)
        assert read(sent(region, twice)) == [4 * LEAST_BYTES, 1]
        reader.stdin.close()
    assert reader.returncode == 0


def place(pid, descriptor, inode, start, size):
    packed = shared_arrays._PLACE.pack(pid, descriptor, inode, start, size)
    return wire.encode(wire.ObservedFrame(1, msgspec.msgpack.Ext(SHARED, packed)))


def test_a_place_that_is_none_is_refused(region, tmp_path):
    sent(region, LARGE)
    sent(region, LARGE)
    own = os.getpid(), region._descriptor, region._inode
    with pytest.raises(WireError, match="is not within"):
        received(place(*own, 1 << 17, 1))
    with pytest.raises(WireError, match="is not within"):
        received(place(*own, 0, 1 << 40))
    with pytest.raises(WireError, match="no array of"):
        received(place(*own, 0, 17))
    with pytest.raises(WireError, match="no memory of arrays"):
        received(place(os.getpid(), region._descriptor, region._inode + 1, 0, 8))
    with pytest.raises(WireError, match="cannot be opened"):
        received(place(os.getpid(), 1 << 20, 1, 0, 8))
    with pytest.raises(WireError, match="no place of an array"):
        received(wire.encode(wire.ObservedFrame(1, msgspec.msgpack.Ext(SHARED, b"short"))))
    with (tmp_path / "file").open("wb+") as file:
        file.write(bytes(100))
        file.flush()
        number = file.fileno()
        with pytest.raises(WireError, match="memory of process"):
            received(place(os.getpid(), number, os.fstat(number).st_ino, 0, 8))
    memory = os.memfd_create("shrinks", os.MFD_ALLOW_SEALING)
    os.truncate(memory, 4096)
    with pytest.raises(WireError, match="no memory of arrays"):
        received(place(os.getpid(), memory, os.fstat(memory).st_ino, 0, 8))
    os.close(memory)


def test_it_cannot_shrink_under_its_reader(region):
    sent(region, LARGE)
    sent(region, LARGE)
    assert fcntl.fcntl(region._descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.truncate(region._descriptor, 0)


def test_where_there_is_no_memory_arrays_stay_in_the_messages(region, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(3):
        data = sent(region, LARGE)
        assert len(data) > LARGE.nbytes
        assert received(data)[0].tolist() == LARGE.tolist()


def test_a_process_that_has_dropped_its_rights_sends_arrays_in_the_messages():
    """Its descriptors are root's alone, below /proc."""
    code = (
        "import ctypes, os\n"
        "import numpy as np\n"
        "from governor.episodes.remote import wire\n"
        "from governor.episodes.remote.shared_arrays import Region\n"
        "if not os.geteuid(): os.setuid(65534)\n"
        "ctypes.CDLL(None).prctl(4, 0)\n"  # PR_SET_DUMPABLE
        "region = Region()\n"
        "print(*(len(region.encode(wire.ObservedFrame(1, np.zeros(20_000)))) for _ in range(3)))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert min(map(int, told.stdout.split())) > 160_000


def test_a_descriptor_that_user_code_has_reused_is_not_closed(region, tmp_path):
    sent(region, LARGE)
    sent(region, LARGE)
    number = region._descriptor
    with (tmp_path / "of_a_user").open("w") as file:
        os.dup2(file.fileno(), number)
    region.close()
    os.write(number, b"still open")
    os.close(number)

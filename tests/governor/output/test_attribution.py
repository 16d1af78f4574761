"""To which episode a line belongs, and what it costs to say so."""

import os

from governor.output import attribution, spool
from tests.support.output_world import lines_of


def test_python_and_raw_output_belong_to_the_episode(tmp_path):
    lines = lines_of(
        tmp_path,
        """
os.write(1, b"raw before\\n")
for number in range(4):
    episode.begin(phase="train", episode=number)
    if number % 2:
        print("printed", number)
        os.write(1, b"raw %d\\n" % number)
episode.end()
print("after")
os.write(1, b"raw after\\n")
""",
    )
    assert {line.text: line.episode for line in lines} == {
        "raw before": None,
        "printed 1": 1,
        "raw 1": 1,
        "printed 3": 3,
        "raw 3": 3,
        "after": None,
        "raw after": None,
    }
    assert {line.phase for line in lines if line.episode} == {"train"}


def test_each_thread_has_its_own_episode_and_raw_bytes_belong_to_neither(tmp_path):
    lines = lines_of(
        tmp_path,
        """
import threading
both = threading.Barrier(2)
def play(number):
    mine = attribution.Attribution()
    mine.begin(episode=number)
    both.wait()
    print("printed", number)
    os.write(1, b"raw\\n")
    both.wait()
    mine.end()
threads = [threading.Thread(target=play, args=(number,)) for number in (1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    )
    assert {(line.text, line.episode) for line in lines} == {
        ("printed 1", 1),
        ("printed 2", 2),
        ("raw", None),
    }


def test_an_episode_that_prints_nothing_costs_no_write(tmp_path, monkeypatch):
    descriptors = tuple(spool.create(tmp_path, "a@1-1", suffix) for suffix in spool.STREAMS)
    process = attribution.ProcessAttribution(descriptors, tmp_path / "a@1-1.now")
    monkeypatch.setattr(attribution, "_process", process)
    one = attribution.Attribution()
    asked, size = [], spool.size
    monkeypatch.setattr(spool, "size", lambda descriptor: asked.append(descriptor) or size(descriptor))
    for number in range(100):
        one.begin(episode=number)
    assert asked == [*descriptors] * 100
    assert [os.fstat(descriptor).st_size for descriptor in descriptors] == [0, 0]
    page = attribution.read_page((tmp_path / "a@1-1.now").read_bytes())
    assert page == ((0, 0), b'"episode":99,')
    one.begin_as(b'"task":"t",')
    assert len(asked) == 202
    assert attribution.read_page((tmp_path / "a@1-1.now").read_bytes()) == ((0, 0), b'"task":"t",')
    os.write(descriptors[0], b"raw")
    one.begin_as(b'"task":"u",')
    assert b'{"task":"t","since":0,"mark":1}' in (tmp_path / "a@1-1.out").read_bytes()
    for descriptor in descriptors:
        os.close(descriptor)

"""What a run records of what it uses."""

import os

from governor.runs.record import usage


class Run:
    uid = "u"

    def __init__(self, folder):
        self.folder = folder


def recorder(folder):
    made = usage.UsageRecorder(Run(folder))
    me = {"agent.a": (os.getpid(), 1)}
    return made, lambda: made._record(me)


def test_a_line_has_memory_and_processors_by_conductor(tmp_path):
    _, record = recorder(tmp_path)
    record()
    sum(range(3_000_000))
    record()
    first, last = usage.read(tmp_path / usage.FILE)
    cpu, memory = last.conductors["agent.a"]
    assert 0.05 < cpu < 8
    assert memory > 5 << 20
    assert first.at <= last.at


def test_the_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "MOST", 8)
    made, record = recorder(tmp_path)
    for _ in range(8):
        record()
    assert len(usage.read(tmp_path / usage.FILE)) == 4
    assert made._seconds == 2 * usage.FIRST_SECONDS
    record()
    assert len(usage.read(tmp_path / usage.FILE)) == 5


def test_a_torn_line_is_left_out(tmp_path):
    _, record = recorder(tmp_path)
    record()
    with (tmp_path / usage.FILE).open("ab") as file:
        file.write(b'{"at":12,"cond')
    assert len(usage.read(tmp_path / usage.FILE)) == 1

"""Steps of a vector whose environments step together, on their way to disk: the bound of memory, attempts, and the row of a step."""

from governor.episodes import trajectories
from governor.episodes.records.batch_recording import BYTES, BatchRecorder
from governor.episodes.records.recording import Columns
from governor.episodes.spaces import Box, Discrete


def test_arrays_of_a_recorder_are_bounded(tmp_path):
    large = Box(low=b"", high=b"", shape=(500, 500, 3), dtype="uint8")
    columns = Columns.of(large, Discrete(n=2, start=0))
    recorder = BatchRecorder(tmp_path, phase="p", worker=0, columns=columns, slots=4)
    recorder.begin(0, episode=0, seed=1)
    recorder.add(steps=1)
    recorder.end(0, outcome="terminated")
    recorder.flush()
    assert recorder.taken == 1
    assert sum(array.nbytes for array in recorder.buffer.columns) <= BYTES
    assert recorder.buffer.observations.nbytes <= BYTES


def test_of_attempts_that_are_written_together_the_last_one_counts(tmp_path):
    columns = Columns.of(Discrete(n=9, start=0), Discrete(n=2, start=0))
    recorder = BatchRecorder(tmp_path, phase="p", worker=0, columns=columns, slots=9)
    for steps, outcome in ((3, "crashed"), (1, "crashed"), (2, "terminated")):
        for slot in range(9):
            recorder.begin(slot, episode=slot, seed=1)
        for _ in range(steps):
            recorder.add(steps=9)
        for slot in range(9):
            recorder.end(slot, outcome=outcome)
    recorder.flush()
    recorder.close()
    steps = trajectories.read(tmp_path, "p").to_pandas()
    assert set(steps.attempt) == {3}
    assert steps.groupby("episode").size().tolist() == [2] * 9


def test_a_step_keeps_its_row_when_the_last_episodes_end_before_it_counts(tmp_path):
    columns = Columns.of(Discrete(n=99, start=0), Discrete(n=2, start=0))
    recorder = BatchRecorder(tmp_path, phase="p", worker=0, columns=columns, slots=1)
    recorder.begin(0, episode=0, seed=1)
    recorder.begin_step()
    recorder.add(steps=1)
    row = recorder.begin_step()
    recorder.buffer.observations[row + 1] = 77
    recorder.end(0, outcome="timed_out")
    recorder.flush()
    recorder.add(steps=0)
    assert recorder.buffer.observations[recorder.buffer.row, 0] == 77, "with which the next one begins"
    recorder.close()

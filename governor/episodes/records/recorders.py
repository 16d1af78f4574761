"""The recorders of a phase, one for each worker. Arrow is imported with the first one: the forkserver has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from governor.episodes.records.batch_recording import BatchRecorder
    from governor.episodes.records.recording import Columns, StepRecorder
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import StartSimulation


class Recorders:
    """`folder` is the run's. For any thread; a recorder is for the thread of its worker."""

    def __init__(self, folder: Path, command: StartSimulation) -> None:
        self._folder = folder
        self._command = command
        self._of: dict[int, StepRecorder | BatchRecorder] = {}

    @property
    def taken(self) -> int:
        """Steps so far."""
        return sum(recorder.taken for recorder in [*self._of.values()])

    @property
    def row_bytes(self) -> int:
        """Of a step; 0 as long as there is none."""
        return max((recorder.columns.row_bytes for recorder in [*self._of.values()]), default=0)

    def of_spaces(self, worker: int, observation: SpaceSpec, action: SpaceSpec) -> StepRecorder:
        """The recorder of a worker whose environment has these spaces."""
        from governor.episodes.records.recording import Columns  # noqa: PLC0415  # as above

        return self.of(worker, Columns.of(observation, action, self._command.info))

    def of(self, worker: int, columns: Columns) -> StepRecorder:
        """The recorder of a worker; a new one if the columns of its steps change."""
        from governor.episodes.records.recording import StepRecorder  # noqa: PLC0415  # as above

        recorder = self._of.get(worker)
        if not isinstance(recorder, StepRecorder) or recorder.columns != columns:
            if recorder is not None:
                recorder.close()
            command = self._command
            recorder = StepRecorder(self._folder, phase=command.name, worker=worker, columns=columns)
            recorder.keeps_last = command.mode == "train" and command.workers * command.vector == 1
            self._of[worker] = recorder
        return recorder

    def of_batches(self, worker: int, observation: SpaceSpec, action: SpaceSpec, slots: int) -> BatchRecorder:
        """The recorder of a worker whose environments step together."""
        from governor.episodes.records.batch_recording import BatchRecorder  # noqa: PLC0415  # as above
        from governor.episodes.records.recording import Columns  # noqa: PLC0415  # as above

        recorder, columns, command = self._of.get(worker), Columns.of(observation, action), self._command
        if not isinstance(recorder, BatchRecorder) or recorder.columns != columns:
            if recorder is not None:
                recorder.close()
            recorder = BatchRecorder(
                self._folder, phase=command.name, worker=worker, columns=columns, slots=slots
            )
            self._of[worker] = recorder
        return recorder

    def close(self) -> None:
        for recorder in self._of.values():
            recorder.close()

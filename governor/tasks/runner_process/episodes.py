"""Episodes inside a runner: the task that plays a chunk of them.

Rules:
1. Environment and agent are built once for each process and phase, and reused for later chunks. The agent has the state
   that the run saved last, and does not learn: only a single agent could.
2. User code runs in a thread of its own. A cancellation, which is raised in the main thread, ends the episode at its next
   step, as with every transport, and interrupts no write.
3. Steps are in the run's folder before the episode is reported. A runner that cannot see the folder sends them with it.
4. An episode that is repeated after a crash is recorded in a stream that was begun after that crash: it counts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from governor.episodes.context import Context, reports
from governor.episodes.local.execution_context import ExecutionContext, current_episodes
from governor.episodes.local.local_agent import LocalAgent
from governor.episodes.local.one_episode import OneEpisode
from governor.episodes.local.stepping import LocalEpisodeWorker
from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.records import episode_file
from governor.episodes.records.episode_file import streams_of
from governor.episodes.records.recording import Columns, StepRecorder
from governor.episodes.rules.failures import FailureBounds
from governor.episodes.rules.seeds import episode_seed
from governor.errors import ConductorError
from governor.failures import reason_of
from governor.messages import decode_simulation
from governor.output.attribution import Attribution
from governor.tasks.api import TaskCancelled, TaskResult
from governor.tasks.protocol.episodes import (
    READY,
    TOO_MANY_FAILED,
    UNPREPARED,
    WITHOUT_STATE,
    EpisodeChunk,
    decode_chunk,
    encode_episode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.records.reports import EpisodeReports
    from governor.episodes.spaces import SpaceSpec
    from governor.messages import StartSimulation
    from governor.tasks.api import TaskContext

_thread: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="episodes")
_player: Player | None = None


def play(number: int, chunk: bytes, context: TaskContext) -> Any:
    """The task. Its first run returns READY, WITHOUT_STATE, or reason and traceback of why not; the others an episode (`encode_episode`) or UNPREPARED."""
    if context.run_id == 0:
        return _in_thread(lambda: _make_ready(decode_chunk(chunk), context.run, context.run_folder))
    player = _player
    if player is None or player.chunk.number != number:
        return UNPREPARED
    return _in_thread(lambda: player.play(player.chunk.indices[context.run_id - 1]))


def _in_thread(work: Callable[[], Any]) -> Any:
    if _player is not None:
        _player.interrupts = False
    future: Future[Any] | None = None
    try:
        future = _thread.submit(work)
        return future.result()
    except TaskCancelled:
        if future is None:
            raise
        if _player is not None:
            _player.interrupts = True
        return future.result()


def _make_ready(chunk: EpisodeChunk, run: str, run_folder: Path) -> str | list[str]:
    global _player  # noqa: PLW0603  # a runner plays for one phase at a time
    key = chunk.part, chunk.resets
    if _player is not None and (_player.key != key or _player.replays < chunk.replays):
        _player.close()
        _player = None
    if _player is None:
        command = decode_simulation(chunk.part)
        sees_folder = episode_file.path_of(run_folder, command.name).exists()
        if not sees_folder and chunk.learned and chunk.state is None:
            return WITHOUT_STATE
        player = Player(
            command,
            chunk=chunk,
            folder=run_folder if sees_folder else None,
            run=run,
            run_folder=run_folder,
        )
        try:
            player.make()
        except ConductorError as error:
            player.close()
            reason = reason_of(error)
            return [str(reason), reason.traceback]
        _player = player
    _player.begin(chunk)
    return READY


class _Actor(LocalAgent):
    """An agent that only acts."""

    def episode_ended(self, index: int = -1, reports: EpisodeReports | None = None) -> None:
        """Nothing was learned, so nothing is saved."""


class Player(OneEpisode):
    """Environment, agent and recorder of this process, and the `one_episode.EpisodeSource` of its worker: one episode at a time."""

    def __init__(
        self,
        command: StartSimulation,
        *,
        chunk: EpisodeChunk,
        folder: Path | None,
        run: str,
        run_folder: Path,
    ) -> None:
        """`folder` is that of the run, `run_folder`; None if this runner cannot see it. `run` is the run's id."""
        if command.made_environment is None:
            raise ConductorError("the command does not say what its environment is made of")
        self.command = msgspec.structs.replace(command, workers=1)
        self.key = chunk.part, chunk.resets
        self.replays = chunk.replays
        self._folder = folder
        self._columns: Columns
        self._recorders: dict[int, StepRecorder] = {}
        """By worker: this runner may play chunks of each."""
        self._sent: dict[int, _Sent] = {}
        if folder is None:
            folder = self._sent_of(chunk.worker).folder
        name, made = command.agents[0], command.made_agents[0]
        state_path = folder / "agents" / f"{name}.state"
        if self._sent and chunk.state is not None:
            state_path.parent.mkdir()
            state_path.write_bytes(chunk.state)
        for_user = partial(Context, run_id=run, run_folder=run_folder)
        reports.phase = command.name
        self._agent = _Actor(
            name=name,
            made=made,
            seed=command.seed,
            state_path=state_path,
            context=for_user(name=f"agent.{name}"),
        )
        self._attribution = Attribution()
        self._context = ExecutionContext(
            chunk.worker, command=command, owner=chunk.worker, agent=name, attribution=self._attribution
        )
        reports.bind(partial(current_episodes, [self._context]))
        self._worker = LocalEpisodeWorker(
            self,
            [self._context],
            self._agent,
            command.made_environment,
            user_context=for_user(name=f"environment.{command.environment}"),
        )
        self.begin(chunk)

    def make(self) -> None:
        """Builds environment and agent. Raises ConductorError."""
        try:
            self._worker.play_all()
        except SeveralPlayers:
            raise ConductorError(
                f"environment {self.command.environment!r} has several players: that needs transport: conductors or in_process"
            ) from None
        finally:
            self._attribution.end()
        if self.command.mode == "train" and self._agent.calls(0, alone=True).learn is not None:
            raise ConductorError(
                f"agent {self._agent.name!r} learns, and on Ray there is one of it in each runner: "
                "train with transport: conductors or in_process"
            )

    def begin(self, chunk: EpisodeChunk) -> None:
        """Its episodes are those of the chunk's worker, in their records as in their steps."""
        self.chunk = chunk
        self._bounds = FailureBounds.of_left(chunk.bears)
        if chunk.worker != self._context.number:
            self._context.number = chunk.worker
            [slot] = self._worker.slots
            slot.recorder, slot.calls_of = self._recorder_of(chunk.worker), None  # calls bear its number, too

    def play(self, index: int) -> list[Any] | TaskResult | str:
        """Plays the episode; returns it, with its steps if they are not in the run's folder, or TOO_MANY_FAILED."""
        if self._bounds.exceeded:
            return TOO_MANY_FAILED
        self.play_next = index
        try:
            self._worker.play_all()
        finally:
            self._attribution.end()  # a task of the same phase may follow
        if self.played is None:
            raise RuntimeError(f"episode {index} was not played")
        self._bounds.add(self.played.outcome)
        sent = self._sent.get(self.chunk.worker)
        if sent is None:
            return encode_episode(self.played)
        return TaskResult(encode_episode(self.played, sent.name), payload=sent.take())

    def close(self) -> None:
        self._worker.close()
        for recorder in self._recorders.values():
            recorder.close()
        for sent in self._sent.values():
            sent.close()

    # -- EpisodeSource ----------------------------------------------------------------------------------------

    def seed_of(self, index: int) -> int:
        return episode_seed(self.command.seed, self.command.phase, index)

    def recorder(self, worker: int, observation: SpaceSpec, action: SpaceSpec) -> StepRecorder:
        self._columns = Columns.of(observation, action, self.command.info)
        return self._recorder_of(worker)

    def _recorder_of(self, worker: int) -> StepRecorder:
        if worker not in self._recorders:
            folder = self._folder or self._sent_of(worker).folder
            columns = self._columns
            self._recorders[worker] = StepRecorder(
                folder, phase=self.command.name, worker=worker, columns=columns
            )
        return self._recorders[worker]

    def _sent_of(self, worker: int) -> _Sent:
        if worker not in self._sent:
            self._sent[worker] = _Sent(self.command.name)
        return self._sent[worker]

    def trains(self, index: int) -> bool:  # noqa: ARG002  # agents that learn are refused in `make`
        return self.command.mode == "train"


class _Sent:
    """A stream outside the run's folder: its new bytes are sent after each episode."""

    def __init__(self, phase: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="governor-episodes-"))
        self.name = uuid4().hex
        self._phase = phase
        self._file = -1

    def take(self) -> bytes:
        if self._file < 0:
            streams = streams_of(self.folder, self._phase)
            if not streams:
                return b""
            self._file = os.open(streams[0][2], os.O_RDONLY | os.O_CLOEXEC)
            shutil.rmtree(self.folder)  # the open file is all that is left, so a kill leaves nothing
        with os.fdopen(os.dup(self._file), "rb", buffering=0) as file:  # both share one position
            return file.read()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        shutil.rmtree(self.folder, ignore_errors=True)

"""The agent in a thread of its own: it acts for every worker that has a session, and learns from all of them.

It is built at the first join, when its spaces are known (`agent_runtime`); a saved state is loaded then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from governor import logs
from governor.episodes import exits, spaces
from governor.episodes.arrays import WireError
from governor.episodes.context import reports
from governor.episodes.entries import Abandoned, load
from governor.episodes.records import state_file
from governor.episodes.remote import wire
from governor.episodes.remote.agent_episode import AgentEpisode
from governor.episodes.remote.agent_runtime import AgentRuntime
from governor.episodes.remote.agent_session import AgentSession
from governor.episodes.remote.thread_host import ThreadHost
from governor.episodes.restoring.replay import enter, obstacle_of, restore
from governor.errors import ConductorError
from governor.failures import reason_of
from governor.output.attribution import Attribution, episode_fields

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.episodes.agents import AgentSource
    from governor.episodes.restoring.replay import Restored
    from governor.episodes.restoring.so_far import PhaseSoFar

log = logs.get_logger()


class AgentHost(ThreadHost):
    """`loaded`: the agent begins from a state. `replayed` counts what it learns again, for any thread."""

    def __init__(self, source: AgentSource, *, name: str, path: Path, goes_on: bool = False) -> None:
        """`goes_on`: an earlier process had the agent."""
        super().__init__(name=name, path=path)
        self.loaded = False
        self.replayed = 0
        self._goes_on = goes_on
        self._source = source
        self._runtime: AgentRuntime | None = None
        self._sessions: dict[bytes, AgentSession] = {}
        self._request: tuple[bytes, int] | None = None
        """Session and number of the request that is being answered."""

    def current_work(self, session: bytes, number: int) -> AgentEpisode | None:
        """The agent's current work, if that is this request or learning from this session; for any thread."""
        runtime = self._runtime
        if runtime is None:
            return None
        if self._request == (session, number):
            episodes = runtime.working_on
            return episodes[0] if len(episodes) == 1 else AgentEpisode(session)
        learning = runtime.learning
        return learning if learning is not None and learning.session == session else None

    @property
    def is_built(self) -> bool:
        """For any thread."""
        return self._runtime is not None

    @property
    def needs_info(self) -> bool:
        """As of `control.Joined`, once there is a session; so are `hears_ends` and `is_masked`. For any thread."""
        return self._runtime is not None and self._runtime.calls.needs_info

    @property
    def hears_ends(self) -> bool:
        return self._runtime is not None and self._runtime.calls.hears_ends

    @property
    def is_masked(self) -> bool:
        return self._runtime is not None and self._runtime.calls.is_masked

    # -- called through `run_in_thread` -----------------------------------------------------------------

    def open_session(
        self,
        session: bytes,
        *,
        observation: spaces.SpaceSpec,
        action: spaces.SpaceSpec,
        old: Sequence[bytes],
        max_staleness: int = 0,
        worker: int = 0,
        workers: int = 1,
        trains: bool = False,
        seed: int | None = None,
        so_far: PhaseSoFar | None = None,
    ) -> Restored | None:
        """Opens a session of a worker of a phase with so many streams of steps, which replaces `old`; builds the agent if there is none,
        with this `seed` if one is given, and brings it to where the phase is (`so_far`): what it had to learn again for that. Raises
        ConductorError with one line.
        """
        runtime, given = self._runtime, (observation, action)
        found = None
        if runtime is None:
            if seed is not None:
                self._source = replace(self._source, seed=seed)
            runtime = self._build(given)
            if so_far is not None and (self._goes_on or so_far.ended):
                found = self._restore(runtime, so_far)
        spaces.require_same(runtime.spaces, given, of=self.name)
        if so_far is not None and found is None:
            runtime, found = self._brought(runtime, so_far)
        runtime.require_streams(workers if trains else 1)
        runtime.bind(max_staleness)
        for name in old:
            if (replaced := self._sessions.pop(name, None)) is not None:
                replaced.close(runtime)
        self._sessions[session] = AgentSession(session, worker=worker, workers=workers)
        runtime.working_on = ()
        return found

    def _build(self, given: tuple[spaces.SpaceSpec, spaces.SpaceSpec]) -> AgentRuntime:
        runtime = AgentRuntime(self._source, spaces=given, name=self.name, reply=self.reply)
        self._runtime = runtime
        return runtime

    def _brought(self, runtime: AgentRuntime, so_far: PhaseSoFar) -> tuple[AgentRuntime, Restored | None]:
        """The agent where the phase is: another one, if this one has learned of an episode that is played again."""
        told = runtime.learned.told
        if so_far.is_known_to(told) if not so_far.obstacle else told.phase != so_far.name:
            enter(runtime.learned, runtime.calls, so_far)
            return runtime, None
        if so_far.obstacle:
            return runtime, None
        if not obstacle_of(runtime.learned, runtime.calls, so_far):
            runtime.bind(0)
            runtime = self._build(runtime.spaces)
        return runtime, self._restore(runtime, so_far)

    def _restore(self, runtime: AgentRuntime, so_far: PhaseSoFar) -> Restored:
        def check() -> None:
            self.replayed += 1

        folder = self._source.state_path.parent.parent
        return restore(
            runtime.learned, runtime.calls, so_far, known=runtime.spaces, run_folder=folder, check=check
        )

    def copy(self, path: Path) -> None:
        """Writes the agent's current state to `path`; its saved state, if this process has not built the agent.

        Raises ConductorError, OSError, TypeError and what its `state_dict` raises.
        """
        if self._runtime is not None:
            self._runtime.copy(path)
        else:
            state_file.copy(path, saved=self._source.state_path, name=self.name)

    # -- ThreadHost -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        exits.set_description(lambda: "" if self._runtime is None else self._runtime.describe())
        Attribution(self._current_fields).bind()
        load(self._source.entry)
        self.loaded = state_file.initial_state(self._source.state_path, self._source.first_state) is not None

    def _current_fields(self) -> dict[str, str | int]:
        """As of `attribution`."""
        episodes = () if self._runtime is None else self._runtime.working_on
        if len(episodes) != 1 or episodes[0].number < 0:
            return {}
        return episode_fields(reports.phase, episodes[0].number, episodes[0].evaluation)

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_agent_request(data)
        except WireError:
            return None
        runtime, session = self._runtime, self._sessions.get(peer)
        if runtime is None or session is None:
            return wire.encode(wire.FaultFrame(request.number, "agent", "unknown session"))
        self._request = (peer, request.number)
        try:
            return session.answer(runtime, request)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # a senseless message must not end the thread, which serves all
            return wire.encode(wire.fault(request.number, "agent", reason_of(error)))
        finally:
            self._request = None
            runtime.working_on = ()

    def _finish(self) -> None:
        """An interrupted agent is not saved."""
        if self._runtime is not None and not self._abandoned:
            try:
                self._runtime.close()
            except ConductorError as error:
                log.warning("agent.not_saved", agent=self.name, reason=error.reason)

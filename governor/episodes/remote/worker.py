"""A worker of a simulation: a thread that leases one environment, or a vector of them, and has a session with each agent.

Rules:
1. If the process of its environment or the conductor of its agent exits, the worker asks for another one until it is there: its
   death, its restart, and the build of the environment or the agent take `return_seconds` at most.
2. After a deadline or a stop, a pending answer may take `SETTLE_SECONDS` more (`episode_worker`); after that the environment
   is released as hung, or the agent's conductor is notified.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import CancelledError
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from governor import logs
from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.records.reports import EpisodeReports
from governor.episodes.remote import control, frames, wire
from governor.episodes.remote.request_channel import Interrupted, Overdue, PeerLost, RequestChannel
from governor.episodes.restoring.so_far import PhaseSoFar, obstacle_of
from governor.episodes.rules.seeds import agent_seed
from governor.episodes.simulation import Paused
from governor.failures import Reason
from governor.messages import AgentRestored
from transport.errors import RequestError

if TYPE_CHECKING:
    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.simulation import Simulation
    from governor.episodes.spaces import SpaceSpec

MAX_ATTEMPTS: Final = 3
SETTLE_SECONDS: Final = 0.5
RELEASE_SECONDS: Final = 5.0
SAVE_SECONDS: Final = 60.0
"""For the agent to save its state, after its pending work for other workers."""

Granted = TypeVar("Granted", control.Leased, control.Joined)

log = logs.get_logger()


class ConductorUnavailable(Exception):
    """A conductor did not come back, or refused permanently; `reason` is that of the part's end."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class NoFreeEnvironment(Exception):
    """Every environment of the pool is leased to another worker, so this worker is not needed."""


class Stopped(Exception):
    """The part was stopped during a request to a conductor."""


def run(worker: RemoteWorker) -> None:
    """Runs a worker from its first episode to the end of the part."""
    simulation, number = worker.simulation, worker.number
    if number == 0 and (simulation.spec.incarnation > 1 or simulation.command.done.ended):
        worker.report_obstacle()
    try:
        worker.play_all()
    except NoFreeEnvironment as error:
        log.warning("simulation.worker_without_environment", worker=number, reason=str(error))
    except Stopped:
        log.debug("simulation.worker_stopped", worker=number)
    except ConductorUnavailable as error:
        simulation.break_off(error.reason)
    finally:
        worker.close()


class RemoteWorker(ABC):
    """Its channels to an environment and to the agent, and what it asks their conductors."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        command = simulation.command
        self.simulation = simulation
        self.number = number
        self._resets = 0
        self._obstacle = obstacle_of(command)
        self._environment: RequestChannel | None = None
        self._agents: dict[str, RequestChannel] = {}
        self._to_rejoin: set[str] = set()
        """Agents that join again before the next episode, so that they learn what is on record and nothing else."""
        self._is_closing = False
        self._masked: set[str] = set()
        """Agents that take action masks."""
        self._lease: control.Leased | None = None
        self._informed: set[str] = set()
        """Agents that need whole infos."""
        self._hearing: set[str] = set()
        """Agents that want to know how episodes ended."""
        self._ended: dict[str, list[frames.EndedEpisode]] = {}
        """By agent: those of which it has not been told."""
        self._reports = EpisodeReports(simulation)
        self._environment_service = control.environment_service(simulation.spec.uid, command.environment)

    @abstractmethod
    def play_all(self) -> None:
        """Plays until no episode is left. Raises NoFreeEnvironment, Stopped, ConductorUnavailable."""

    def report_obstacle(self) -> None:
        """Of a training phase that goes on, or has to play an episode again: why that is not exact, if it cannot be. Once."""
        simulation, command = self.simulation, self.simulation.command
        obstacle, self._obstacle = self._obstacle, ""
        for agent in command.agents if obstacle and command.mode == "train" else ():
            report = AgentRestored(phase=command.phase, agent=agent, reason=obstacle)
            simulation.ask(simulation.link.report(report), stoppable=False)

    def close(self) -> None:
        """Saves what was learned and releases the lease; the session remains, the next phase takes it over."""
        self._reports.send()
        if self.simulation.abandoned:
            return
        self._is_closing = True
        for name in list(self._to_rejoin):  # no episode comes next
            try:
                self._agents[name] = self._join(name)
            except (NoFreeEnvironment, Stopped, ConductorUnavailable) as error:
                log.warning("agent.not_saved", reason=getattr(error, "reason", str(error)))
        for name in list(self._agents):
            self._save_agent(name)
        self._drop_environment()
        for channel in list(self._agents.values()):
            self._drop_agent(channel)

    def _next_index(self, *, wait: bool = True, again: int | None = None) -> int | None:
        """As `Simulation.next_index`; all reports are acknowledged before a pause."""
        try:
            return self.simulation.next_index(wait=False, again=again)
        except Paused:
            if not wait:
                raise
            self._reports.drain()
            return self.simulation.next_index(again=again)

    def _save_agent(self, name: str) -> None:
        """An agent that is gone cannot save any more; that is logged and is no failure."""
        try:
            reason = self._request_save(name)
        except PeerLost as error:
            log.warning("agent.not_saved", reason=str(error))
            return
        if reason:
            self.simulation.finalizer.keep_streams()
            self.simulation.break_off(reason.within(f"agent {name!r} cannot be saved"))

    def _request_save(self, name: str) -> Reason:
        """The reason why it could not be saved, in one line, or "". Raises PeerLost."""
        channel = self._agents[name]
        answer: wire.Answer | None = None
        try:
            request = wire.SaveFrame(channel.next_number(), self._take_ended(name))
            answer = channel.ask(request, deadline=monotonic() + SAVE_SECONDS)
        except Overdue:
            pass
        except Interrupted:
            answer = channel.wait_late(seconds=SAVE_SECONDS)
        if answer is None:
            self._report_hung(channel)
            return Reason(f"it takes longer than {SAVE_SECONDS:g} s")
        return Reason(answer.reason, answer.traceback) if isinstance(answer, wire.FaultFrame) else Reason("")

    def _take_ended(self, agent: str = "") -> list[frames.EndedEpisode]:
        """What this agent, or the only one, is told with the next request."""
        return self._ended.pop(agent or self.simulation.command.agents[0], [])

    @property
    def _spaces(self) -> tuple[SpaceSpec, SpaceSpec]:
        """Of observations and actions."""
        if self._lease is None:
            raise ConductorUnavailable("there are no spaces without an environment")
        return self._lease.observation_space, self._lease.action_space

    def _recorder_of(self, number: int) -> StepRecorder:
        return self.simulation.recorder(number, *self._spaces)

    def _report_hung(
        self, channel: RequestChannel, *, due: tuple[int, ...] = ()
    ) -> control.ControlAnswer | None:
        """Reports a hang to the conductor and drops the channel, unless the answer to `due` is `NotExpired`."""
        if channel is self._environment:
            hung = f"{channel.name} did not answer by the deadline of its episode"
            return self._drop_environment(hung=hung, due=due)
        hang = control.ReportHang(session=channel.identity, number=channel.number, due=due)
        answer = self._send(self._agent_service(channel), hang)
        if not isinstance(answer, control.NotExpired):
            self._drop_agent(channel)
        return answer

    def _agent_service(self, channel: RequestChannel) -> str:
        name = next(name for name, opened in self._agents.items() if opened is channel)
        return control.agent_service(self.simulation.spec.uid, name)

    # -- lines ----------------------------------------------------------------------------------------------

    @property
    def _agent(self) -> RequestChannel | None:
        """That of a single agent."""
        return self._agents.get(self.simulation.command.agents[0])

    def _connect(self) -> None:
        """Opens the channels that are not open. Raises NoFreeEnvironment, Stopped, ConductorUnavailable, SeveralPlayers."""
        if self._environment is None:
            self._environment = self._acquire()
        for name in self.simulation.command.agents:
            if name not in self._agents:
                self._agents[name] = self._join(name)

    def _acquire(self) -> RequestChannel:
        spec = self.simulation.spec
        request = control.Acquire(
            owner=spec.name, incarnation=spec.incarnation, worker=self.number, turn=next(_turns)
        )
        answer = self._request_until_available(self._environment_service, request, control.Leased)
        self._lease = answer
        environment = self._open_channel(
            f"environment {self.simulation.command.environment!r}", answer.endpoint, answer.lease
        )
        self._environment = environment
        self._accept(answer)
        return environment

    def _accept(self, lease: control.Leased) -> None:
        """Prepares for this environment. Raises ConductorUnavailable, SeveralPlayers."""
        if lease.players:
            raise SeveralPlayers

    def _spaces_for(self, agent: str, lease: control.Leased) -> tuple[SpaceSpec, SpaceSpec]:  # noqa: ARG002  # its only one
        return lease.observation_space, lease.action_space

    def _join(self, name: str) -> RequestChannel:
        if self._lease is None:
            raise ConductorUnavailable("an agent cannot join without an environment")
        self._reports.send()
        join = partial(self._join_request, name, *self._spaces_for(name, self._lease))
        service = control.agent_service(self.simulation.spec.uid, name)
        answer = self._request_until_available(service, join(), control.Joined)
        self._to_rejoin.discard(name)
        if not obstacle_of(self.simulation.command):
            self.simulation.joins[name] = join
        for kind, is_one in (
            (self._masked, answer.masked),
            (self._informed, answer.needs_info),
            (self._hearing, answer.hears_ends),
        ):
            (kind.add if is_one else kind.discard)(name)
        return self._open_channel(f"agent {name!r}", answer.endpoint, answer.session)

    def _join_request(self, name: str, observation: SpaceSpec, action: SpaceSpec) -> control.Join:
        spec, command = self.simulation.spec, self.simulation.command
        return control.Join(
            owner=spec.name,
            incarnation=spec.incarnation,
            worker=self.number,
            turn=next(_turns),
            observation_space=observation,
            action_space=action,
            max_staleness=command.max_staleness if command.mode == "train" else 0,
            workers=command.workers * command.vector,
            trains=command.mode == "train",
            seed=agent_seed(command.seed, name) if len(command.agents) > 1 else None,
            phase=command.phase,
            so_far=self._so_far(),
        )

    def _so_far(self) -> PhaseSoFar:
        """The only worker has reported all that has ended; others report meanwhile."""
        command = self.simulation.command
        ended = command.done.ended if obstacle_of(command) else self.simulation.ended_so_far
        return PhaseSoFar.of(command, ended)

    def _open_channel(self, name: str, endpoint: str, identity: str) -> RequestChannel:
        return RequestChannel(
            name=name, endpoint=endpoint, identity=identity, stop=self.simulation.stop_signal
        )

    def _apply_resets(self) -> None:
        if self._resets != self.simulation.resets:
            self._resets = self.simulation.resets
            self._drop_environment(renew=True)

    def _drop_lost(self, channel: RequestChannel) -> Reason:
        """Drops a channel whose peer is gone. Returns who is gone, and how it ended if that is known."""
        reason = f"the conductor of {channel.name} exited"
        if channel is not self._environment:
            self._drop_agent(channel)
            return Reason(reason)
        answer = self._drop_environment(lost=True)
        if isinstance(answer, control.Accepted) and answer.place:
            return Reason(f"the process of {channel.name} exited: {answer.place}", answer.stack)
        return Reason(reason)

    def _drop_environment(
        self, *, renew: bool = False, hung: str = "", lost: bool = False, due: tuple[int, ...] = ()
    ) -> control.ControlAnswer | None:
        channel = self._environment
        if channel is None:
            return None
        release = control.Release(lease=channel.identity, renew=renew, hung=hung, lost=lost, due=due)
        answer = self._send(self._environment_service, release)
        if not isinstance(answer, control.NotExpired):
            channel.close()
            self._environment = None
        return answer

    def _drop_agent(self, channel: RequestChannel) -> None:
        channel.close()
        self._agents = {name: opened for name, opened in self._agents.items() if opened is not channel}

    # -- the control plane ----------------------------------------------------------------------------------

    def _request_until_available(
        self, service: str, request: control.Acquire | control.Join, kind: type[Granted]
    ) -> Granted:
        """Repeats the request while the conductor is unavailable. Raises NoFreeEnvironment, Stopped, ConductorUnavailable."""
        self._reports.send()  # it may be long; and another environment may have other spaces, so another recorder
        client = self.simulation.link.client
        seconds = RELEASE_SECONDS if self._is_closing else self.simulation.command.return_seconds
        asked = control.ask_when_available(client, service, request, seconds=seconds)
        try:
            answer = self.simulation.ask(asked, stoppable=not self._is_closing).result()
        except CancelledError:
            raise Stopped(service) from None
        except control.UNAVAILABLE as error:
            raise ConductorUnavailable(f"{service} is not back after {seconds:g} s: {error}") from error
        except RequestError as error:
            raise ConductorUnavailable(str(error)) from error
        match answer:
            case kind():
                return answer
            case control.Busy():
                raise NoFreeEnvironment(f"all {answer.pool} environments of the pool are in use")
            case control.Failed():
                raise ConductorUnavailable(answer.why)
            case _:
                raise ConductorUnavailable(f"{service}: unexpected answer {type(answer).__name__}")

    def _send(
        self, service: str, message: control.Release | control.ReportHang
    ) -> control.ControlAnswer | None:
        """The answer, or None if the conductor is unavailable: its successor has no state that the message refers to."""
        if self.simulation.abandoned:
            return None
        asked = control.ask(self.simulation.link.client, service, message, seconds=RELEASE_SECONDS)
        try:
            return self.simulation.ask(asked, stoppable=False).result()
        except RequestError as error:
            log.info("simulation.notification_failed", service=service, reason=str(error))
            return None


_turns = count()
"""Shared by all workers and phases of this process: a later turn takes over the lease and session of an earlier one."""

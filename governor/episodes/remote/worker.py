"""A worker of a simulation: a thread that holds one environment and a seat at the agent, and plays episodes.

Rules:
1. Every episode that began is recorded once, with its outcome; what ended a line decides which (`_play_through`).
2. An episode whose environment or agent conductor died is played again, with the same index and seed, when the
   conductor is back: at most `TRIES` times, then it is `crashed`. Such a death alone makes no failure.
3. After a deadline or a stop, the side that still owes an answer gets `SETTLE_SECONDS`; then an environment is handed
   back as hung, and an agent's conductor is told.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Final

from governor import logs
from governor.episodes import spaces
from governor.episodes.records.reports import LINGER_SECONDS, EpisodeReports
from governor.episodes.remote import control, wire
from governor.episodes.remote.episode import Episode
from governor.episodes.remote.line import Interrupted, Overdue, PeerLost, RequestChannel
from governor.episodes.simulation import Paused
from governor.messages import EpisodeRecord
from transport.errors import ConnectionLost, RequestError, ServiceNotFound, WorkerLost

if TYPE_CHECKING:
    from concurrent.futures import Future

    from governor.episodes.records.recording import StepRecorder
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeOutcome

TRIES: Final = 3
RETURN_SECONDS: Final = 60.0
"""How long a conductor may be away: its restart, and the build of its environments or its agent."""
SETTLE_SECONDS: Final = 0.5
RELEASE_SECONDS: Final = 5.0
KEEP_SECONDS: Final = 60.0
"""For the agent to write what it has learned, behind what it is at for other workers."""

log = logs.get_logger()


class OutOfReach(Exception):
    """A conductor did not come back, or refused for good; the text is the reason for the part's end."""


class NoPlace(Exception):
    """Every environment of the pool is leased to another worker: this one is too many."""


class Stopped(Exception):
    """The part was stopped while a conductor was asked."""


def live(worker: RemoteEpisodeWorker) -> None:
    """The life of a worker, from its first episode to the end of the part."""
    simulation, number = worker.simulation, worker.number
    try:
        worker.play_all()
    except NoPlace as error:
        log.warning("simulation.worker_without_environment", worker=number, reason=str(error))
    except Stopped:
        log.debug("simulation.worker_stopped", worker=number)
    except OutOfReach as error:
        simulation.break_off(str(error))
    finally:
        worker.leave()


class RemoteEpisodeWorker:
    def __init__(self, simulation: Simulation, number: int, *, linger: float = LINGER_SECONDS) -> None:
        command = simulation.command
        self.simulation = simulation
        self.number = number
        self._resets = 0
        self._environment: RequestChannel | None = None
        self._agent: RequestChannel | None = None
        self._lease: control.Leased | None = None
        self._reports = EpisodeReports(simulation, linger=linger)
        self._environment_service = control.environment_service(simulation.spec.uid, command.environment)
        self._agent_service = control.agent_service(simulation.spec.uid, command.agents[0])

    def play_all(self) -> None:
        """Until there is no episode left. Raises NoPlace, Stopped, OutOfReach."""
        while True:
            self._connect()
            index = self._next_index()
            if index is None:
                break
            self._obey_resets()
            played = self._play(index)
            self._reports.add(played, self._recorder if self._lease is not None else None)
        self._reports.drain()

    def leave(self) -> None:
        """What was learned is kept, and the lease handed back; the seat stays, the next phase takes it over."""
        self._reports.send()
        if self.simulation.abandoned:
            return
        self._keep_learned()
        self._drop_environment()
        self._drop_agent()

    def _next_index(self) -> int | None:
        try:
            return self.simulation.next_index(wait=False)
        except Paused:
            self._reports.drain()
            return self.simulation.next_index()

    def _keep_learned(self) -> None:
        """An agent that is gone has kept what it could."""
        line = self._agent
        if line is None or self.simulation.command.mode != "train":
            return
        try:
            reason = self._keep_through(line)
        except PeerLost as error:
            log.warning("agent.not_kept", reason=str(error))
            return
        if reason:
            name = self.simulation.command.agents[0]
            self.simulation.break_off(f"agent {name!r} cannot be saved: {reason}")

    def _keep_through(self, line: RequestChannel) -> str:
        """Why it could not be kept, in one line. Raises PeerLost."""
        answer: wire.Answer | None = None
        try:
            answer = line.ask(wire.KeepFrame(line.next()), deadline=monotonic() + KEEP_SECONDS)
        except Overdue:
            pass
        except Interrupted:
            answer = line.settle(seconds=KEEP_SECONDS)
        if answer is None:
            self._give_up(line)
            return f"it takes longer than {KEEP_SECONDS:g} s"
        return answer.reason if isinstance(answer, wire.FaultFrame) else ""

    # -- one episode ----------------------------------------------------------------------------------------

    def _play(self, index: int) -> EpisodeRecord:
        began = monotonic()
        seed = self.simulation.seed_of(index)
        value, steps = 0.0, 0
        outcome: EpisodeOutcome = "crashed"
        reason = ""
        for attempt in range(1, TRIES + 1):
            try:
                episode = self._begin(index, seed)
            except Stopped:
                outcome = "cancelled"
                break
            except (OutOfReach, NoPlace) as error:
                self.simulation.break_off(str(error))
                reason = str(error)
                break
            outcome, reason = self._play_once(episode, index=index, seed=seed)
            value, steps = episode.value, episode.steps
            if outcome != "crashed":
                break
            log.warning("episode.crashed", index=index, attempt=attempt, reason=reason)
            if attempt < TRIES:
                self.simulation.played_again()
        return EpisodeRecord(
            index=index,
            worker=self.number,
            seed=seed,
            outcome=outcome,
            value=value,
            steps=steps,
            seconds=monotonic() - began,
            reason=reason,
        )

    def _begin(self, index: int, seed: int) -> Episode:
        environment, agent = self._connect()
        command = self.simulation.command
        timeout = command.episode_timeout
        return Episode(
            environment=environment,
            agent=agent,
            index=index,
            seed=seed,
            train=self.simulation.trains(index),
            max_steps=command.max_steps,
            record=self._recorder.step,
            deadline=None if timeout is None else monotonic() + timeout,
            stopping=self._stopping,
        )

    def _play_once(self, episode: Episode, *, index: int, seed: int) -> tuple[EpisodeOutcome, str]:
        recorder = self._recorder
        recorder.begin(episode=index, seed=seed)
        outcome, reason = self._play_through(episode)
        recorder.end(outcome=outcome, flush=False)
        return outcome, reason

    @property
    def _recorder(self) -> StepRecorder:
        return self._recorder_of(self.number)

    def _recorder_of(self, number: int) -> StepRecorder:
        if self._lease is None:
            raise OutOfReach("steps cannot be recorded without an environment")
        return self.simulation.recorder(number, self._lease.observation_space, self._lease.action_space)

    def _stopping(self) -> bool:
        """Asked between two steps."""
        self._reports.send_due()
        return self.simulation.stopping

    def _play_through(self, episode: Episode) -> tuple[EpisodeOutcome, str]:
        try:
            return episode.play()
        except PeerLost as lost:
            self._drop_lost(lost.line)
            return "crashed", f"the conductor behind {lost.line.name} died"
        except Overdue as overdue:
            timeout = self.simulation.command.episode_timeout
            reason = f"longer than {timeout:g} s"
            if not self._settle(overdue.line):
                reason = f"{reason}, and {overdue.line.name} hangs"
            return "timed_out", reason
        except Interrupted as interrupted:
            self._settle(interrupted.line)
            return "cancelled", ""

    def _settle(self, line: RequestChannel) -> bool:
        """Whether the other side came back within its grace; if not, it is dealt with."""
        try:
            if line.settle(seconds=SETTLE_SECONDS) is not None:
                return True
        except PeerLost:
            self._drop_lost(line)
            return True
        self._give_up(line)
        return False

    def _give_up(self, line: RequestChannel, *, due: tuple[int, ...] = ()) -> control.ControlAnswer | None:
        """What hangs is told to its conductor, and its line dropped; with `due` not if the answer is `NotDue`."""
        if line is self._environment:
            hung = f"{line.name} did not answer by the deadline of its episode"
            return self._drop_environment(hung=hung, due=due)
        stuck = control.Stuck(seat=line.identity, number=line.number, due=due)
        answer = self._tell(self._agent_service, stuck)
        if not isinstance(answer, control.NotDue):
            self._drop_agent()
        return answer

    # -- lines ----------------------------------------------------------------------------------------------

    def _connect(self) -> tuple[RequestChannel, RequestChannel]:
        """Both lines, asked for where there is none. Raises NoPlace, Stopped, OutOfReach."""
        return self._environment or self._acquire(), self._agent or self._join()

    def _acquire(self) -> RequestChannel:
        spec = self.simulation.spec
        wanted = control.Acquire(
            owner=spec.name, incarnation=spec.incarnation, worker=self.number, turn=next(_turns)
        )
        answer = self._ask(self._environment_service, wanted)
        if isinstance(answer, control.Busy):
            raise NoPlace(f"all {answer.pool} environments of the pool are in use")
        if not isinstance(answer, control.Leased):
            raise OutOfReach(f"{self._environment_service}: unexpected answer {type(answer).__name__}")
        self._lease = answer
        self._plain_observation = isinstance(answer.observation_space, spaces.Discrete)
        self._plain_action = isinstance(answer.action_space, spaces.Discrete)
        self._environment = self._line(
            f"environment {self.simulation.command.environment!r}", answer.endpoint, answer.lease
        )
        return self._environment

    def _join(self, *, renew: bool = False) -> RequestChannel:
        spec, command = self.simulation.spec, self.simulation.command
        if self._lease is None:
            raise OutOfReach("an agent cannot join without an environment")
        wanted = control.Join(
            owner=spec.name,
            incarnation=spec.incarnation,
            worker=self.number,
            turn=next(_turns),
            observation_space=self._lease.observation_space,
            action_space=self._lease.action_space,
            renew=renew,
            max_staleness=command.max_staleness if command.mode == "train" else 0,
        )
        answer = self._ask(self._agent_service, wanted)
        if not isinstance(answer, control.Joined):
            raise OutOfReach(f"{self._agent_service}: unexpected answer {type(answer).__name__}")
        self._agent = self._line(f"agent {command.agents[0]!r}", answer.endpoint, answer.seat)
        return self._agent

    def _line(self, name: str, endpoint: str, identity: str) -> RequestChannel:
        return RequestChannel(
            name=name, endpoint=endpoint, identity=identity, stop=self.simulation.stop_signal
        )

    def _obey_resets(self) -> None:
        if self._resets == self.simulation.resets:
            return
        self._resets = self.simulation.resets
        self._drop_environment(renew=True)
        if self.simulation.take_restart():
            try:
                self._acquire()
                self._drop_agent()
                self._join(renew=True)
            except Stopped:
                log.debug("simulation.worker_stopped", worker=self.number)

    def _drop_lost(self, line: RequestChannel) -> None:
        if line is self._environment:
            line.close()
            self._environment = None
        else:
            self._drop_agent()

    def _drop_environment(
        self, *, renew: bool = False, hung: str = "", due: tuple[int, ...] = ()
    ) -> control.ControlAnswer | None:
        line = self._environment
        if line is None:
            return None
        release = control.Release(lease=line.identity, renew=renew, hung=hung, due=due)
        answer = self._tell(self._environment_service, release)
        if not isinstance(answer, control.NotDue):
            line.close()
            self._environment = None
        return answer

    def _drop_agent(self) -> None:
        line, self._agent = self._agent, None
        if line is not None:
            line.close()

    # -- the control plane ----------------------------------------------------------------------------------

    def _ask(self, service: str, wanted: control.Acquire | control.Join) -> control.ControlAnswer:
        """Waits for a conductor that is away. Raises Stopped, OutOfReach."""
        self._reports.send()  # it may be long; and another environment may have other spaces, so another recorder
        deadline = monotonic() + RETURN_SECONDS
        while True:
            left = deadline - monotonic()
            try:
                body = self._request(service, wanted, seconds=left).result()
            except CancelledError:
                raise Stopped(service) from None
            except (ServiceNotFound, WorkerLost, ConnectionLost) as error:
                if monotonic() < deadline:
                    continue
                raise OutOfReach(f"{service} is not back after {RETURN_SECONDS:g} s: {error}") from error
            except RequestError as error:
                raise OutOfReach(str(error)) from error
            answer = control.decode_answer(body[0])
            if isinstance(answer, control.Failed):
                raise OutOfReach(answer.reason)
            return answer

    def _tell(self, service: str, message: control.Release | control.Stuck) -> control.ControlAnswer | None:
        """What is heard is done; a conductor that is away has forgotten what it would be told about."""
        if self.simulation.abandoned:
            return None
        try:
            body = self._request(service, message, seconds=RELEASE_SECONDS, stoppable=False).result()
        except RequestError as error:
            log.info("simulation.not_heard", service=service, reason=str(error))
            return None
        return control.decode_answer(body[0])

    def _request(
        self, service: str, message: control.Control, *, seconds: float, stoppable: bool = True
    ) -> Future[list[bytes]]:
        body = control.encode(message)
        request = self.simulation.link.client.request(
            service, body, timeout=max(seconds, 0.1), idempotent=True
        )
        return self.simulation.ask(request, stoppable=stoppable)


_turns = count()
"""Shared by all workers and phases of this process: a later turn takes over what an earlier one held."""

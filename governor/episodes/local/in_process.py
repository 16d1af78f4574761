"""A phase whose environment and agent live in the simulation controller's own process: its workers, and who watches them.

Rules:
1. A worker that is in the environment's or the agent's code `GRACE_SECONDS` after its deadline hangs, and a thread
   that hangs cannot be ended: the process is. First the episode is recorded as `timed_out`, all that has ended is
   reported and what the agent has learned is saved; the next incarnation plays the rest of the phase.
2. After a stop user code has `LEAVE_SECONDS` to come back; past them, the process is given up as well.
3. Agents outlive a phase, environments do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from governor import logs
from governor.episodes import exits
from governor.episodes.entries import in_daemon_thread, one_line
from governor.episodes.local.kept_agent import LocalAgent
from governor.episodes.local.parallel import ParallelWorker
from governor.episodes.local.place import BUILD, JOIN, SAVE, ExecutionContext, WrittenOff
from governor.episodes.local.stepping import CLOSE_SECONDS, LocalEpisodeWorker, SeveralPlayers
from governor.episodes.local.vector import LocalVectorWorker
from governor.episodes.records.checkpoints import COPY_SECONDS
from governor.episodes.rules.seeds import agent_seed
from governor.errors import ConductorError
from governor.messages import EpisodeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.simulation import Simulation

GRACE_SECONDS: Final = 0.5
LEAVE_SECONDS: Final = 5.0
FAREWELL_SECONDS: Final = 5.0
"""For the governor to acknowledge what has ended."""
SAVE_SECONDS: Final = 2.0
"""In a process that is given up; `KEEP_SECONDS` at the end of a phase."""
KEEP_SECONDS: Final = 60.0

log = logs.get_logger()


class InProcess:
    """Of one phase; `agents` are those of the process, by name. `play` is for the workers' threads, the rest for the event loop."""

    def __init__(
        self, simulation: Simulation, *, agents: dict[str, LocalAgent], give_up: Callable[[str], None]
    ) -> None:
        command = simulation.command
        if command.made_environment is None:
            raise ConductorError("the command does not say what its environment is made of")
        run_seed, several = simulation.spec.seed, len(command.agents) > 1
        for name, made in zip(command.agents, command.made_agents, strict=True):
            if name not in agents:
                path = Path(simulation.spec.run_folder) / "agents" / f"{name}.state"
                seed = agent_seed(run_seed, name) if several else run_seed
                agents[name] = LocalAgent(name=name, made=made, seed=seed, state_path=path)
        self._agents = {name: agents[name] for name in command.agents}
        self._made = command.made_environment
        self._simulation = simulation
        self._give_up = give_up
        self._vector = self._made.vector
        self._places = [
            ExecutionContext(number, owner=number // self._vector, agent=command.agents[0])
            for number in range(command.workers * self._vector)
        ]
        self._workers: dict[int, LocalEpisodeWorker] = {}
        self._at_work = command.workers
        self._leaving = threading.Lock()

    async def run(self) -> None:
        """From the first episode to `PartEnded`, unless the process is given up before."""
        playing = asyncio.create_task(self._simulation.run(self.play, copy=self.copy), name="simulation.play")
        watching = asyncio.create_task(self._watch(), name="simulation.watch")
        both = {playing, watching}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
        await asyncio.wait(both)
        for task in both:
            if not task.cancelled():
                task.result()

    async def copy(self, name: str, path: Path) -> None:
        """The state of an agent at `path`. Raises ConductorError."""
        try:
            async with asyncio.timeout(COPY_SECONDS):
                await in_daemon_thread(partial(self._agents[name].copy, path), name="agent.copy")
        except TimeoutError:
            reason = f"agent {name!r} hangs: its state_dict takes longer than {COPY_SECONDS:g} s"
            self._simulation.break_off(reason)
            raise ConductorError(reason) from None
        except ConductorError:
            raise
        except Exception as error:  # of user code, and of the disk
            raise ConductorError(one_line(error)) from error

    def play(self, simulation: Simulation, number: int) -> None:
        """The life of worker `number`."""
        places = self._places[number * self._vector : (number + 1) * self._vector]
        exits.tells(partial(_at_work, places))
        agent = next(iter(self._agents.values()))
        worker: LocalEpisodeWorker
        if len(self._agents) > 1 or simulation.command.players:
            worker = ParallelWorker(simulation, places[0], self._agents, self._made)
        elif len(places) > 1:
            worker = LocalVectorWorker(simulation, places, agent, self._made)
        else:
            worker = LocalEpisodeWorker(simulation, places[0], agent, self._made)
        try:
            try:
                self._live(simulation, worker, places[0])
            except SeveralPlayers as found:
                worker = ParallelWorker(
                    simulation, places[0], self._agents, self._made, built=found.environment
                )
                self._live(simulation, worker, places[0])
        except WrittenOff:
            log.info("simulation.worker_came_back", worker=number)

    def _live(self, simulation: Simulation, worker: LocalEpisodeWorker, place: ExecutionContext) -> None:
        """Raises SeveralPlayers before anything is played, and WrittenOff. Whatever else ends it ends the part."""
        self._workers[place.owner] = worker
        try:
            worker.play_all()
        except (SeveralPlayers, WrittenOff):
            raise
        except ConductorError as error:
            simulation.break_off(error.reason)
        except BaseException as error:  # what is left is to be done all the same
            log.exception("simulation.worker_failed", worker=place.owner)
            simulation.break_off(f"worker {place.owner}: {one_line(error)}")
        worker.close()
        self._left(place)

    def _left(self, place: ExecutionContext) -> None:
        """The last worker saves what the agents have learned: before the end of the part is reported."""
        with self._leaving:
            self._at_work -= 1
            if self._at_work:
                return
        for name, agent in self._agents.items():
            place.agent = name
            place.enter(SAVE, seconds=KEEP_SECONDS)
            try:
                agent.keep()
            except BaseException as error:  # noqa: BLE001  # user code, and the disk
                self._simulation.break_off(f"agent {name!r} cannot be saved: {one_line(error)}")
            place.leave()

    # -- the watch, in the event loop -----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Ends when it has given the process up, else it is cancelled."""
        stop: asyncio.Future[Any] = asyncio.wrap_future(self._simulation.ask(asyncio.Event().wait()))
        try:
            await self._watch_until(stop)
        finally:
            stop.cancel()

    async def _watch_until(self, stop: asyncio.Future[Any]) -> None:
        """Goes on behind the stop, and gives who does not come back then less time."""
        command = self._simulation.command
        shortest = min(CLOSE_SECONDS, command.build_seconds, command.episode_timeout or inf)
        allowance = shortest + GRACE_SECONDS
        never = asyncio.get_running_loop().create_future()
        stopped = inf
        while True:
            now = monotonic()
            if stop.done():
                stopped = min(stopped, now)
            due = now + allowance
            hung = []
            for place in self._places:
                if not place.busy:
                    continue
                began = place.began
                end = min(place.deadline + GRACE_SECONDS, max(stopped, began) + LEAVE_SECONDS)
                if end > now:
                    due = min(due, end)
                elif self._hangs(place) and place.write_off(began=began):
                    hung.append(place)
                else:  # it waits for the agent, or for its turn in a vector
                    due = min(due, now + GRACE_SECONDS)
            if hung:
                await self._end(hung)
                return
            await asyncio.wait({stop if stopped == inf else never}, timeout=due - now)

    def _hangs(self, place: ExecutionContext) -> bool:
        if place.where.startswith("agent"):
            return self._agents[place.agent].holder in {None, place.owner}
        return bool(place.where)

    async def _end(self, hung: list[ExecutionContext]) -> None:
        simulation = self._simulation
        if simulation.abandoned:
            return
        reported = []
        for place in hung:
            worker = self._workers[place.owner]
            with contextlib.suppress(OSError):  # of a full disk: the next incarnation plays it again
                timed_out = place.index is not None and not simulation.stopping
                if timed_out:
                    worker.recorder_at(place).end(outcome="timed_out", flush=False)
                reported.append(asyncio.wrap_future(worker.reports.hand_in()))
                if timed_out:
                    worker.recorder_at(place).flush()
                    reported.append(asyncio.wrap_future(simulation.ended(self._timed_out(place))))
        simulation.abandon()
        if reported:
            await asyncio.wait(reported, timeout=FAREWELL_SECONDS)
        hanging = {place.agent for place in hung if place.where.startswith("agent")}
        await asyncio.gather(
            *(self._save(agent) for name, agent in self._agents.items() if name not in hanging)
        )
        self._give_up(self._story(hung[0]))

    async def _save(self, agent: LocalAgent) -> None:
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await in_daemon_thread(agent.keep, name="agent.save")
        except Exception as error:  # noqa: BLE001  # user code, the disk, or it takes too long: what was saved last stands
            log.warning("agent.not_saved", agent=agent.name, reason=one_line(error))

    def _timed_out(self, place: ExecutionContext) -> EpisodeRecord:
        timeout = self._simulation.command.episode_timeout
        return EpisodeRecord(
            index=place.index or 0,
            worker=place.number,
            seed=place.seed,
            outcome="timed_out",
            value=place.value,
            values=dict(place.values),
            steps=place.steps,
            seconds=monotonic() - place.began,
            reason=f"longer than {timeout:g} s, and {self._whose(place)} hangs",
        )

    def _story(self, place: ExecutionContext) -> str:
        if place.index is None:
            key = " (deadlines.start)" if place.where in {BUILD, JOIN} else ""
            took = f"{monotonic() - place.began:.1f} s{key}"
            return f"{self._whose(place)} hangs: it has not come back from {place.where} for {took}"
        return f"{self._whose(place)} hangs in episode {place.index}"

    def _whose(self, place: ExecutionContext) -> str:
        if place.where.startswith("agent"):
            return f"agent {place.agent!r}"
        return f"environment {self._simulation.command.environment!r}"


def _at_work(places: list[ExecutionContext]) -> str:
    """Those of a worker's places that it is in the user's code of, if that is of an episode: several where `act_many` has
    them all in hand.
    """
    at = [(place.where, place.index) for place in places if place.busy and place.where]
    return exits.place(at[0][0], [index for _, index in at if index is not None]) if at else ""

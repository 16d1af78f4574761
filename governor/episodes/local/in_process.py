"""A phase whose environment and agent are in the simulation controller's own process: its workers, and the watch for hangs.

Rules:
1. A worker that is in the environment's or the agent's code `GRACE_SECONDS` after its deadline hangs. A hung thread cannot
   be ended, so the process is: first the episode is recorded as `timed_out`, all ended episodes are reported and the
   agent's state is saved; the next incarnation plays the rest of the phase.
2. After a stop user code has `LEAVE_SECONDS` to return; after that the process is given up as well.
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
from governor.episodes.context import Context, reports
from governor.episodes.entries import in_daemon_thread
from governor.episodes.local import local_agent
from governor.episodes.local.execution_context import (
    BUILD,
    JOIN,
    SAVE,
    ExecutionContext,
    VectorContext,
    WrittenOff,
    current_episodes,
)
from governor.episodes.local.native import NativeWorker
from governor.episodes.local.players import LocalPlayersWorker
from governor.episodes.local.stepping import CLOSE_SECONDS, LocalEpisodeWorker
from governor.episodes.players.assignment import SeveralPlayers
from governor.episodes.records.checkpoints import COPY_SECONDS
from governor.episodes.restoring.so_far import PhaseSoFar
from governor.errors import ConductorError
from governor.failures import one_line, reason_of, stack_of
from governor.messages import AgentRestored
from governor.output.attribution import Attribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.local.local_agent import LocalAgent
    from governor.episodes.restoring.replay import Restored
    from governor.episodes.simulation import Simulation
    from governor.messages import EpisodeRecord

GRACE_SECONDS: Final = 0.5
LEAVE_SECONDS: Final = 5.0
ACKNOWLEDGE_SECONDS: Final = 5.0
"""How long the governor may take to acknowledge the ended episodes."""
EXIT_SECONDS: Final = 1.0
"""How long user code that ends the process by ``os._exit`` may wait for that."""
SAVE_SECONDS: Final = 2.0
"""How long saving may take in a process that is given up; `FINAL_SAVE_SECONDS` at the end of a phase."""
FINAL_SAVE_SECONDS: Final = 60.0

log = logs.get_logger()


class InProcess:
    """One phase; `agents` are those of the process, by name. `play` is for the workers' threads, the rest for the event loop."""

    def __init__(
        self, simulation: Simulation, *, agents: dict[str, LocalAgent], give_up: Callable[[str], None]
    ) -> None:
        command = simulation.command
        if command.made_environment is None:
            raise ConductorError("the command does not say what its environment is made of")
        spec = simulation.spec
        folder = Path(spec.run_folder)
        context = partial(Context, run_id=spec.uid, run_folder=folder)
        made = local_agent.of_phase(
            command, run_seed=spec.seed, run_folder=folder, context=lambda name: context(name=name)
        )
        self._context = context(name=f"environment.{command.environment}")
        reports.phase = command.name
        for name, agent in made.items():
            agents.setdefault(name, agent)
        self._agents = {name: agents[name] for name in command.agents}
        so_far = PhaseSoFar.of(command, command.done.ended)
        goes_on = spec.incarnation > 1 or bool(so_far.ended)
        for name, agent in self._agents.items():
            restored = partial(self._report_restored, name) if goes_on else None
            agent.enter(so_far, restored=restored, check=self._replaying)
        self._made = command.made_environment
        self._simulation = simulation
        self._give_up = give_up
        self._vector = self._made.vector
        self._contexts = [
            context
            for owner in range(command.workers)
            for context in self._contexts_of(owner, range(owner * self._vector, (owner + 1) * self._vector))
        ]
        self._workers: dict[int, LocalEpisodeWorker] = {}
        self._running_workers = command.workers
        self._finish_lock = threading.Lock()

    def _contexts_of(self, owner: int, numbers: range) -> list[ExecutionContext]:
        command = self._simulation.command
        if self._made.vector_mode != "sync":
            return VectorContext.several(numbers, command=command, owner=owner, agent=command.agents[0])
        return [
            ExecutionContext(number, command=command, owner=owner, agent=command.agents[0])
            for number in numbers
        ]

    def _report_restored(self, agent: str, found: Restored) -> None:
        self._simulation.ask(
            self._simulation.link.report(
                AgentRestored(phase=self._simulation.command.phase, agent=agent, **found._asdict())
            ),
            stoppable=False,
        )

    def _replaying(self) -> None:
        """A worker learns from the record: that takes as long as it takes, and is seen."""
        self._simulation.replayed += 1
        for context in self._contexts:
            context.deadline = max(context.deadline, monotonic() + self._simulation.command.build_seconds)

    async def run(self) -> None:
        """Runs from the first episode to `PartEnded`, unless the process is given up before."""
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
        """Writes the state of an agent to `path`. Raises ConductorError."""
        try:
            async with asyncio.timeout(COPY_SECONDS):
                await in_daemon_thread(partial(self._agents[name].copy, path), name="agent.copy")
        except TimeoutError:
            reason = f"agent {name!r} hangs: its state_dict takes longer than {COPY_SECONDS:g} s"
            self._simulation.break_off(reason)
            raise ConductorError(reason) from None
        except ConductorError:
            raise
        except Exception as error:  # from user code or the disk
            raise ConductorError(reason_of(error)) from error

    def play(self, simulation: Simulation, number: int) -> None:
        """Runs worker `number`."""
        contexts = self._contexts[number * self._vector : (number + 1) * self._vector]
        exits.set_description(partial(_describe_current, contexts), before_exit=self._hand_over)
        for context in contexts:
            context.thread = threading.get_ident()
        attribution = _attribution(contexts)
        reports.bind(partial(current_episodes, contexts))
        agent = next(iter(self._agents.values()))
        built = None
        try:
            if len(self._agents) == 1 and not simulation.command.players:
                worker = LocalEpisodeWorker if self._made.vector_mode == "sync" else NativeWorker
                try:
                    alone = worker(simulation, contexts, agent, self._made, user_context=self._context)
                    self._run_worker(simulation, alone, contexts[0])
                except SeveralPlayers as found:
                    built = found.environment
                else:
                    return
            several = LocalPlayersWorker(
                simulation, contexts[0], self._agents, self._made, built=built, user_context=self._context
            )
            self._run_worker(simulation, several, contexts[0])
        except WrittenOff:
            log.info("simulation.worker_came_back", worker=number)
        finally:
            attribution.end()

    def _hand_over(self) -> None:
        """User code ends the process: the ended episodes of all workers are on record before, if that takes no longer than `EXIT_SECONDS`."""

        def hand_over() -> None:
            for worker in list(self._workers.values()):
                with contextlib.suppress(Exception):
                    worker.reports.write_and_report().result()

        handing = threading.Thread(target=hand_over, name="simulation.hand_over", daemon=True)
        handing.start()
        handing.join(EXIT_SECONDS)

    def _run_worker(
        self, simulation: Simulation, worker: LocalEpisodeWorker, context: ExecutionContext
    ) -> None:
        """Raises SeveralPlayers before any episode, and WrittenOff. Any other exception ends the part."""
        self._workers[context.owner] = worker
        try:
            worker.play_all()
        except (SeveralPlayers, WrittenOff):
            raise
        except ConductorError as error:
            simulation.break_off(error.reason)
        except BaseException as error:  # the worker must be closed all the same
            log.exception("simulation.worker_failed", worker=context.owner)
            simulation.break_off(reason_of(error).within(f"worker {context.owner}"))
        worker.close()
        self._worker_finished(context)

    def _worker_finished(self, context: ExecutionContext) -> None:
        """The last worker saves the agents, before the end of the part is reported."""
        with self._finish_lock:
            self._running_workers -= 1
            if self._running_workers:
                return
        for name, agent in self._agents.items():
            context.agent = name
            context.enter(SAVE, seconds=FINAL_SAVE_SECONDS)
            try:
                agent.save(over=not (self._simulation.abandoned or self._simulation.retiring))
            except BaseException as error:  # noqa: BLE001  # user code, and the disk
                self._simulation.finalizer.keep_streams()
                self._simulation.break_off(reason_of(error).within(f"agent {name!r} cannot be saved"))
            context.leave()

    # -- the watch, in the event loop -----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Returns when it has given the process up; else it is cancelled."""
        stop: asyncio.Future[Any] = asyncio.wrap_future(self._simulation.ask(asyncio.Event().wait()))
        try:
            await self._watch_until(stop)
        finally:
            stop.cancel()

    async def _watch_until(self, stop: asyncio.Future[Any]) -> None:
        """Continues after a stop, and shortens the deadlines of workers that do not return then."""
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
            for context in self._contexts:
                if not context.busy:
                    continue
                began = context.began
                end = min(context.deadline + GRACE_SECONDS, max(stopped, began) + LEAVE_SECONDS)
                if end > now:
                    due = min(due, end)
                elif self._hangs(context) and context.write_off(began=began):
                    hung.append(context)
                else:  # it waits for the agent's lock, or for its turn in a vector
                    due = min(due, now + GRACE_SECONDS)
            if hung:
                await self._report_hung(hung)
                return
            await asyncio.wait({stop if stopped == inf else never}, timeout=due - now)

    def _hangs(self, context: ExecutionContext) -> bool:
        if context.where.startswith("agent"):
            return self._agents[context.agent].holder in {None, context.owner}
        return bool(context.where)

    async def _report_hung(self, hung: list[ExecutionContext]) -> None:
        simulation = self._simulation
        if simulation.abandoned:
            return
        reported = []
        for context in hung:
            worker = self._workers[context.owner]
            with contextlib.suppress(OSError):  # the disk is full: the next incarnation plays it again
                timed_out = context.index >= 0 and not simulation.stopping
                if timed_out:
                    worker.recorder_for(context).end(outcome="timed_out", flush=False)
                reported.append(asyncio.wrap_future(worker.reports.write_and_report()))
                if timed_out:
                    worker.recorder_for(context).flush()
                    reported.append(asyncio.wrap_future(simulation.ended(self._timed_out(context))))
        simulation.abandon()
        settled = True
        if reported:
            _, late = await asyncio.wait(reported, timeout=ACKNOWLEDGE_SECONDS)
            settled = not late
        hanging_agents = {context.agent for context in hung if context.where.startswith("agent")}
        await asyncio.gather(
            *(
                self._save(agent, [context.index for context in hung if context.index >= 0], settled=settled)
                for name, agent in self._agents.items()
                if name not in hanging_agents
            )
        )
        self._give_up(stack_of(hung[0].thread, self._hang_reason(hung[0])))

    async def _save(self, agent: LocalAgent, hung: list[int], *, settled: bool) -> None:
        """Of the `hung` episodes, too: they have timed out. `settled`: all is on record."""

        def save() -> None:
            for index in hung:
                agent.told_end(index)
            agent.save(settled=settled)

        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await in_daemon_thread(save, name="agent.save")
        except Exception as error:  # noqa: BLE001  # user code, the disk, or a timeout: the last saved state remains
            log.warning("agent.not_saved", agent=agent.name, reason=one_line(error))

    def _timed_out(self, context: ExecutionContext) -> EpisodeRecord:
        timeout = self._simulation.command.episode_timeout
        reason = f"longer than {timeout:g} s, and {self._culprit(context)} hangs"
        return context.record("timed_out", stack_of(context.thread, reason))

    def _hang_reason(self, context: ExecutionContext) -> str:
        if context.index < 0:
            key = " (deadlines.start)" if context.where in {BUILD, JOIN} else ""
            took = f"{monotonic() - context.began:.1f} s{key}"
            return f"{self._culprit(context)} hangs: it has not come back from {context.where} for {took}"
        return f"{self._culprit(context)} hangs in episode {context.index}"

    def _culprit(self, context: ExecutionContext) -> str:
        if context.where.startswith("agent"):
            return f"agent {context.agent!r}"
        return f"environment {self._simulation.command.environment!r}"


def _attribution(contexts: list[ExecutionContext]) -> Attribution:
    """Of what the calling worker prints: an episode; in a vector that of the environment whose turn it is."""
    if len(contexts) > 1:

        def describe() -> dict[str, str | int]:
            current = [context for context in contexts if context.busy and context.where]
            return current[0].fields if len(current) == 1 else {"phase": contexts[0].command.name}

        attribution = Attribution(describe)
        attribution.bind()
    else:
        attribution = contexts[0].attribution = Attribution()
    return attribution


def _describe_current(contexts: list[ExecutionContext]) -> str:
    """Describes whose code a worker runs, if it plays an episode: several episodes during `act_many`."""
    at = [(context.where, context.index) for context in contexts if context.busy and context.where]
    return exits.describe(at[0][0], [index for _, index in at if index >= 0]) if at else ""

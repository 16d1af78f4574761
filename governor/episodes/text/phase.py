"""A phase that a language model plays in text environments: the Interactor's episodes as those of a simulation.

Rules:
1. All of it runs in one thread with its own event loop: the conductor's loop, which sends heartbeats, handles neither
   requests nor user code. Environments in Python are separate processes, which are killed when that thread ends.
2. An episode's session is on disk before its end is reported; sessions that an earlier process interrupted do not count.
3. A stop cancels the running episodes; they end as `cancelled`.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from governor.episodes import trajectories
from governor.episodes.context import Context, reports
from governor.episodes.rules import evaluation
from governor.episodes.text.actor_pool import http_endpoints, process_endpoints
from governor.episodes.text.base_urls import SessionSuffixBaseURLProvider, StaticBaseURLProvider
from governor.episodes.text.chat_model import MOST_CONCURRENT, ChatModel
from governor.episodes.text.entries import LANGUAGE_MODEL, is_over_http
from governor.episodes.text.interactor import EPISODE_SECONDS, Interactor
from governor.episodes.text.params import MAX_STEPS, HTTPEnvironmentParams, LanguageModelParams
from governor.episodes.text.phase_pool import PhasePool
from governor.episodes.text.sessions import DataManager
from governor.episodes.text.usage import StoredUsage
from governor.errors import ConductorError, GovernorError
from governor.failures import hide, reason_of
from governor.index_ranges import IndexRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from governor.episodes.simulation import Simulation
    from governor.episodes.text.actor_pool import ActorHandle
    from governor.episodes.text.base_urls import BaseURLProvider
    from governor.episodes.text.episode import TextEpisodeRecord
    from governor.episodes.text.sessions import TextSession
    from governor.episodes.text.usage import Usage
    from governor.messages import Made

CALL_SECONDS: Final = 30.0
"""Timeout of a call of an environment in Python, if the phase has no `episode_timeout`."""

LAST_START: Final = (1 << 63) - 1
"""No session starts so late."""


class TextPhase:
    """The text phase of one simulation, whose command describes environment and agent."""

    def __init__(self, simulation: Simulation) -> None:
        command = simulation.command
        if command.made_environment is None or not command.made_agents:
            raise ConductorError("the command does not say what its environment and agent are made of")
        self._simulation = simulation
        self._folder = Path(simulation.spec.run_folder)
        self._environment: Made = command.made_environment
        self._agent = command.made_agents[0]
        self._manager: DataManager | None = None
        """That of the episodes of this process."""

    async def run(self) -> None:
        """Runs from the first episode to `PartEnded`; for the event loop of the conductor."""
        await self._simulation.run(self._run_thread, threads=1, recorded=self._counted)

    def _run_thread(self, *_: object) -> None:
        """Runs the thread that plays."""
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._play(loop))
        except GovernorError as error:
            self._simulation.break_off(reason_of(error) if getattr(error, "reason", "") else str(error))
        finally:
            loop.close()

    def _counted(self, check: Callable[[], None]) -> IndexRanges:
        """The start times, in microseconds, of the sessions that count: all but those that were interrupted, which are few.

        Of an episode of an earlier process the last session counts, else the one of this process.
        """
        earlier, manager = self._simulation.command.done.ended, self._manager
        found, left_out = IndexRanges(), IndexRanges()
        last: dict[int, int] = {}
        for index, started, session in self._sessions(check):
            if index not in earlier and (manager is None or not manager.made(session)):
                left_out.add(started)
            elif not found.add(index):
                last[index] = started
        for index, started, _ in self._sessions(check) if last else ():
            if last.get(index, started) != started:
                left_out.add(started)
        return IndexRanges([0, *left_out.bounds, LAST_START])

    def _sessions(self, check: Callable[[], None]) -> Iterator[tuple[int, int, str]]:
        """Episode, start and id of each session on record, in the order of their starts."""
        before = None
        recorded = trajectories.tables(self._folder, self._simulation.command.name)
        for table in recorded[1] if recorded is not None else ():
            check()
            rows = table.select(["episode", "started", "session"])
            rows = rows.set_column(1, "started", rows["started"].cast(pa.int64()))
            for one in rows.group_by(rows.column_names, use_threads=False).aggregate([]).to_pylist():
                if one["session"] != before:
                    before = one["session"]
                    yield one["episode"], one["started"], before

    async def _play(self, loop: asyncio.AbstractEventLoop) -> None:
        """Plays the phase. Raises GovernorError if it cannot continue."""
        command, made = self._simulation.command, self._environment
        over_http = is_over_http(made.entry)
        name = self._agent.entry.removeprefix(LANGUAGE_MODEL)
        settings = LanguageModelParams.model_validate(self._agent.params)
        server = HTTPEnvironmentParams.model_validate(made.params if over_http else {})
        async with AsyncExitStack() as stack:
            model = make_model(name, settings, workers=command.workers)
            stack.push_async_callback(model.aclose)
            usage = StoredUsage(self._folder, command.name)
            model.usage = usage.sums
            spec = self._simulation.spec
            context = Context(
                run_id=spec.uid, run_folder=self._folder, name=f"environment.{command.environment}"
            )
            reports.phase = command.name
            pool = PhasePool(
                self._simulation,
                http_endpoints(made.entry, headers=headers_of(server))
                if over_http
                else process_endpoints(made.entry, made.params, reuse=None, context=context),
                episodes=self._episodes_left(),
                env_name=server.name or command.environment,
                id_of=server.id_of,
            )
            stack.push_async_callback(pool.aclose)

            def ended(actor: ActorHandle, record: TextEpisodeRecord) -> None:
                usage.save()
                pool.ended(actor, record)

            self._manager = manager = DataManager(self._folder, phase=command.name)
            stack.callback(manager.close)
            interactor = Interactor(
                pool,
                _provider(settings),
                "",
                name,
                manager,
                max_steps=command.max_steps or MAX_STEPS,
                message_cut=settings.message_cut,
                env_http_timeout_s=server.timeout if over_http else command.episode_timeout or CALL_SECONDS,
                http_retries=server.retries,
                log_actions_preview_chars=0,
                episode_timeout=command.episode_timeout or EPISODE_SECONDS,
                chat_model=model,
                on_record=ended,
                info=command.info,
            )
            stack.push_async_callback(interactor.aclose)
            try:
                await self._until_stopped(loop.create_task(interactor.run_all_environments()))
            finally:
                await pool.wait_acknowledged()  # no callback may reach a closed loop
                usage.save()
                self._simulation.figures |= _figures(usage.sums)

    def _episodes_left(self) -> int:
        """With all attempts at them."""
        command = self._simulation.command
        left = evaluation.planned_episodes(command.episodes, command.evaluate) - len(command.done.ended)
        retries = {} if command.failures is None else command.failures.retries
        return left * (1 + sum(retries.values()))

    async def _until_stopped(self, playing: asyncio.Task[Any]) -> None:
        loop, stop_signal = asyncio.get_running_loop(), self._simulation.stop_signal

        def stop() -> None:
            loop.remove_reader(stop_signal)
            playing.cancel()

        loop.add_reader(stop_signal, stop)
        try:
            await playing
        except asyncio.CancelledError:  # running episodes are recorded as cancelled
            if not self._simulation.stopping:
                raise
        finally:
            loop.remove_reader(stop_signal)


def make_model(name: str, settings: LanguageModelParams, *, workers: int) -> ChatModel:
    """The model of an agent, for so many episodes at once. Raises ConductorError without its key."""
    variable = settings.api_key_env
    return ChatModel(
        model=name,
        base_url_provider=_provider(settings),
        api_key="EMPTY" if variable is None else _value_of(variable, "the key of the model"),
        temperature=settings.temperature,
        timeout=settings.timeout,
        retries=settings.retries,
        concurrency=settings.concurrency or min(workers, MOST_CONCURRENT),
        extra=settings.extra | ({"max_tokens": settings.max_tokens} if settings.max_tokens else {}),
    )


def headers_of(server: HTTPEnvironmentParams) -> dict[str, str]:
    """The headers of each request to an environment. Raises ConductorError without the values that are secret."""
    secret = {
        name: _value_of(variable, f"the header {name}") for name, variable in server.headers_env.items()
    }
    return {**server.headers, **secret}


def _value_of(variable: str, what: str) -> str:
    if not (value := os.environ.get(variable)):
        raise ConductorError(
            f"the environment variable {variable}, which is to hold {what}, is not set where the run is at work: export it where "
            "the daemon (or `governor run`) is started, and start that again, or name it in `secrets` of the run file"
        )
    hide(variable, value)
    return value


class _Spread:
    """Distributes episodes over several base URLs, in turn."""

    def __init__(self, providers: Sequence[BaseURLProvider]) -> None:
        self._providers = providers

    def get_base_url(self, session: TextSession) -> str:
        return self._providers[(session.episode or 0) % len(self._providers)].get_base_url(session)


def _provider(settings: LanguageModelParams) -> BaseURLProvider:
    kind = SessionSuffixBaseURLProvider if settings.session_suffix else StaticBaseURLProvider
    return _Spread([kind(url) for url in settings.base_url])


def _figures(usage: Usage) -> dict[str, float]:
    return {
        "tokens_prompt": usage.prompt_tokens,
        "tokens_completion": usage.completion_tokens,
        "llm_requests": usage.requests,
        "llm_retries": usage.retries,
    }

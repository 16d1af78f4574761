"""Many concurrent episodes of a language model in text environments: leases, plays, records and releases.

Rules:
1. Every episode ends with one outcome and is in `episodes`: a fault in one does not affect another.
2. An episode is recorded before it is reported: its session is ended before it is in `episodes`.
3. A lease is always released, after a cancellation too, and a broken environment is always reported as broken.
4. A cancelled run waits for the ends of its episodes, which is bounded, and leaves no task running.
"""

from __future__ import annotations

import asyncio
from math import inf, isnan
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from governor import logs
from governor.episodes.text.actor_pool import PoolBusy
from governor.episodes.text.base_urls import SessionSuffixBaseURLProvider
from governor.episodes.text.chat_model import MOST_CONCURRENT, ChatModel
from governor.episodes.text.environments.http_environment import HTTPEnvironments
from governor.episodes.text.environments.thread import ThreadEnvironments
from governor.episodes.text.environments.user_calls import run_to_completion
from governor.episodes.text.episode import END_SECONDS, EpisodeContext, TextEpisode, bounded
from governor.episodes.text.http_retries import brief
from governor.episodes.text.llm import answer_seconds
from governor.episodes.text.session_log import SessionLog
from governor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from governor.episodes.info import Wanted
    from governor.episodes.text.actor_pool import ActorHandle
    from governor.episodes.text.base_urls import BaseURLProvider
    from governor.episodes.text.episode import Model, TextEpisodeRecord

N = TypeVar("N", int, float)
EPISODE_SECONDS: Final = 36_000.0

log = logs.get_logger()


class Pool(Protocol):
    """`ActorPool`, or the user's own. `quarantine(actor, reason)` is called before `done` if the pool has it."""

    pool_size: int

    async def start(self) -> None: ...

    async def acquire(self) -> ActorHandle | None: ...

    async def done(self, actor: ActorHandle) -> None: ...


class Interactor:
    """Plays all tasks of `pool`, up to `max_workers` (at most `pool.pool_size`) at once. For one event loop.

    An observation is a list of chat messages, an action is the text of the model's answer, a reward is a finite float; there is
    no batch axis. `episodes` has the record of every episode of the latest run, in the order of their ends.
    """

    def __init__(  # noqa: PLR0917  # the order that users of AIEvoBox know
        self,
        pool: Pool,
        base_url_provider: BaseURLProvider,
        api_key: str,
        model: str,
        data_manager: Any,
        temperature: float = 0.3,
        max_steps: int = 1000,
        message_cut: int = 3,
        env_http_timeout_s: float = 30.0,
        max_workers: int | None = None,
        http_retries: int = 2,
        http_retry_backoff_s: float = 0.5,
        verbose: bool = True,  # noqa: FBT001, FBT002  # as above
        log_actions_preview_chars: int = 120,
        episode_handler: Any = None,
        *,
        llm_timeout_s: float | None = None,
        episode_timeout: float | None = EPISODE_SECONDS,
        chat_model: Model | None = None,
        on_record: Callable[[ActorHandle, TextEpisodeRecord], None] | None = None,
        info: Wanted | None = None,
    ) -> None:
        """All times are in seconds. `env_http_timeout_s` limits each attempt of a call over HTTP, and each call in process;
        `llm_timeout_s` each attempt of an answer; `episode_timeout` an episode. For the first two 0 is no limit.

        `llm_timeout_s` is by default that of the environment variable AIEVOBOX_LLM_TIMEOUT_S, else 300 s, and 900 s with a
        `SessionSuffixBaseURLProvider`. Numbers may be texts, and those out of their bounds are bounded: `max_workers` 0 is 1. With
        `verbose`, the first `log_actions_preview_chars` of each answer are in the log at debug level.
        `chat_model` is used instead of a ChatModel made from `base_url_provider`, `api_key`, `model` and `temperature`; the
        caller closes it. `on_record` is called with each record before the actor is released to the pool; nothing is kept of an
        ended episode then, in `episodes` or in the answer.
        `info`: keys of `info` with what an episode gets of them (``last``, ``mean``, ``sum``, ``min``, ``max``), or ``all``.

        Raises UsageError for values that are no numbers.
        """
        logs.default()
        self.pool = pool
        self.model = model
        self.episodes: list[TextEpisodeRecord] = []
        places = max(1, _number("pool_size", getattr(pool, "pool_size", 1) or 1, int))
        most = places if max_workers is None else _number("max_workers", max_workers, int)
        self.workers = max(1, min(places, most))
        self._own_model = None
        if chat_model is None:
            routed = isinstance(base_url_provider, SessionSuffixBaseURLProvider)
            seconds = answer_seconds(routed=routed) if llm_timeout_s is None else llm_timeout_s
            self._own_model = chat_model = ChatModel(
                model=model,
                base_url_provider=base_url_provider,
                api_key=api_key,
                temperature=_number("temperature", temperature, float),
                timeout=_limit("llm_timeout_s", seconds),
                concurrency=min(self.workers, MOST_CONCURRENT),
            )
        self._connections = HTTPEnvironments(
            retries=max(0, _number("http_retries", http_retries, int)),
            backoff=max(0.0, _number("http_retry_backoff_s", http_retry_backoff_s, float)),
        )
        self._threads = ThreadEnvironments()
        self._sessions = SessionLog(data_manager)
        self._context = EpisodeContext(
            max_steps=_number("max_steps", max_steps, int),
            message_cut=_number("message_cut", message_cut, int),
            environment_timeout=_limit("env_http_timeout_s", env_http_timeout_s) or inf,
            timeout=episode_timeout,
            llm_model=model,
            chat_model=chat_model,
            handler=episode_handler,
            sessions=self._sessions,
            connections=self._connections,
            threads=self._threads,
            preview=max(0, _number("log_actions_preview_chars", log_actions_preview_chars, int))
            if verbose
            else 0,
            info=info or {},
        )
        self._on_record = on_record
        self._running = False
        self._playing = 0

    @property
    def hung_threads(self) -> int:
        """Threads of environments in process that were left behind in a call, and have not returned."""
        return self._threads.hung

    async def run_all_environments(self) -> dict[str, float]:
        """`{f"{env_name}_{env_id}": total reward}`; NaN for an episode that failed, timed out or crashed.

        If a key is played several times, its latest end counts. Raises what the pool raises, after the running episodes have
        ended, and UsageError during another call.
        """
        if self._running:
            raise UsageError("this interactor is running: one run_all_environments() at a time")
        self._running = True
        self.episodes = []
        try:
            await self.pool.start()
            await self._run(
                [asyncio.create_task(self._work(), name=f"interactor.{n}") for n in range(self.workers)]
            )
        finally:
            self._running = False
        return {episode.key: episode.result for episode in self.episodes}

    async def aclose(self) -> None:
        """Closes connections; the caller closes the pool and the data manager. May be called again."""
        self._sessions.close()
        await self._connections.aclose()
        if self._own_model is not None:
            await self._own_model.aclose()

    async def _run(self, workers: list[asyncio.Task[None]]) -> None:
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            for worker in workers:
                worker.cancel()
            raise
        finally:
            await run_to_completion(self._settle(workers), name="interactor.settle")
        for worker in workers:
            worker.result()

    async def _settle(self, workers: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*workers, return_exceptions=True)  # retrieved; `_run` raises the first
        await self._sessions.settle(END_SECONDS)

    async def _work(self) -> None:
        while (actor := await self._acquire()) is not None:
            self._playing += 1
            try:
                await self._play(actor)
            finally:
                self._playing -= 1

    async def _acquire(self) -> ActorHandle | None:
        while True:
            try:
                return await self.pool.acquire()
            except PoolBusy:
                if not self._playing:
                    raise

    async def _play(self, actor: ActorHandle) -> None:
        episode = TextEpisode(actor, self._context)
        try:
            await episode.play()
        finally:
            await run_to_completion(self._end(episode), name="interactor.end")

    async def _end(self, episode: TextEpisode) -> None:
        try:
            await episode.finish()
        finally:
            try:
                self._report(episode)
            finally:
                await bounded("pool", self._release(episode))

    def _report(self, episode: TextEpisode) -> None:
        record = episode.record
        log.debug(
            "episode.ended",
            episode=record.key,
            outcome=record.outcome,
            reason=record.reason,
            steps=record.steps,
        )
        if self._on_record is None:
            self.episodes.append(record)
        else:
            self._on_record(episode.actor, record)

    async def _release(self, episode: TextEpisode) -> None:
        quarantine = getattr(self.pool, "quarantine", None)
        try:
            if episode.broken and quarantine is not None:
                quarantine(episode.actor, episode.broken)
        finally:
            await self.pool.done(episode.actor)


def _number(name: str, value: Any, kind: type[N]) -> N:
    """Raises UsageError."""
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        text = brief(repr(value), 80)
        raise UsageError(f"{name} is {text}: it should be a number") from None
    if isnan(number):
        raise UsageError(f"{name} is nan: it should be a number")
    return number


def _limit(name: str, value: Any) -> float | None:
    """Seconds; None for no limit. Raises UsageError."""
    seconds = _number(name, value, float)
    return seconds if 0 < seconds < inf else None

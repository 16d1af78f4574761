"""Many concurrent episodes of a language model in text environments: leases, plays, records and releases.

Rules:
1. Every episode ends with one outcome and is in `episodes`: a fault in one does not affect another.
2. An episode is recorded before it is reported: its session is ended before it is in `episodes`.
3. A lease is always released, after a cancellation too, and a broken environment is always reported as broken.
4. A cancelled run waits for the ends of its episodes, which is bounded, and leaves no task running.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from governor import logs
from governor.episodes.text.actor_access import ActorAccess
from governor.episodes.text.actor_pool import PoolBusy
from governor.episodes.text.chat_model import MOST_CONCURRENT, ChatModel
from governor.episodes.text.environments.user_calls import run_to_completion
from governor.episodes.text.episode import Rules, TextEpisode, is_cancellation, reason_of
from governor.episodes.text.episode_handler import HandlerCalls
from governor.episodes.text.session_log import SessionLog, session_id
from governor.errors import UsageError
from governor.messages import EpisodeOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.episodes.text.actor_pool import ActorHandle
    from governor.episodes.text.base_urls import BaseURLProvider
    from governor.episodes.text.episode import Model
EPISODE_SECONDS: Final = 36_000.0
END_SECONDS: Final = 30.0
"""How long `on_episode_end`, the data manager's `end_session` and the pool's `done` may take, each."""

ENDED_WELL: Final = frozenset({"terminated", "truncated"})
End: TypeAlias = tuple[EpisodeOutcome, str]

log = logs.get_logger()


class Pool(Protocol):
    """`ActorPool`, or the user's own. `quarantine(actor, reason)` is called before `done` if the pool has it."""

    pool_size: int

    async def start(self) -> None: ...

    async def acquire(self) -> ActorHandle | None: ...

    async def done(self, actor: ActorHandle) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEpisodeRecord:
    """How one episode ended. `total_reward` is the undiscounted sum so far, also if `result` is NaN; `steps` counts the
    environment's steps; `seconds` run from the lease to the end.
    """

    env_name: str
    env_id: str
    group_id: str
    session_id: str
    outcome: EpisodeOutcome
    reason: str
    total_reward: float
    steps: int
    seconds: float

    @property
    def key(self) -> str:
        return f"{self.env_name}_{self.env_id}"

    @property
    def result(self) -> float:
        return self.total_reward if self.outcome in ENDED_WELL else math.nan


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
        episode_handler: Any = None,
        *,
        episode_timeout: float | None = EPISODE_SECONDS,
        chat_model: Model | None = None,
        on_record: Callable[[ActorHandle, TextEpisodeRecord], None] | None = None,
    ) -> None:
        """All times are in seconds. `env_http_timeout_s` limits each attempt of a call over HTTP, and each call in process;
        `episode_timeout` an episode.

        `chat_model` is used instead of a ChatModel made from `base_url_provider`, `api_key`, `model` and `temperature`; the
        caller closes it. `on_record` is called with each record before the actor is released to the pool.
        """
        if max_steps < 1 or (max_workers is not None and max_workers < 1):
            raise UsageError("max_steps and max_workers must be at least 1")
        self.pool = pool
        self.model = model
        self.episodes: list[TextEpisodeRecord] = []
        self.workers = max(1, min(pool.pool_size, max_workers or pool.pool_size))
        self._rules = Rules(
            max_steps=max_steps,
            message_cut=message_cut,
            environment_timeout=env_http_timeout_s,
            timeout=episode_timeout,
        )
        self._own_model = None
        if chat_model is None:
            self._own_model = chat_model = ChatModel(
                model=model,
                base_url_provider=base_url_provider,
                api_key=api_key,
                temperature=temperature,
                concurrency=min(self.workers, MOST_CONCURRENT),
            )
        self._chat_model: Model = chat_model
        self._access = ActorAccess(retries=http_retries, backoff=http_retry_backoff_s)
        self._log = SessionLog(data_manager)
        self._handler = episode_handler
        self._on_record = on_record
        self._running = False
        self._playing = 0

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
                {asyncio.create_task(self._work(), name=f"interactor.{n}") for n in range(self.workers)}
            )
        finally:
            self._running = False
        return {episode.key: episode.result for episode in self.episodes}

    async def aclose(self) -> None:
        """Closes connections; the caller closes the pool and the data manager. May be called again."""
        self._log.close()
        await self._access.aclose()
        if self._own_model is not None:
            await self._own_model.aclose()

    async def _run(self, workers: set[asyncio.Task[None]]) -> None:
        cancelled = False
        while pending := {worker for worker in workers if not worker.done()}:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                for worker in pending if not cancelled else ():
                    worker.cancel()
                cancelled = True
        await self._log.settle(END_SECONDS)
        if cancelled:
            raise asyncio.CancelledError
        for worker in workers:
            worker.result()

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
        started = perf_counter()
        hooks = HandlerCalls(self._handler, env_name=actor.env_name, env_id=actor.env_id)
        episode = TextEpisode(
            open_environment=partial(self._access.open, actor),
            model=self._chat_model,
            hooks=hooks,
            open_session=partial(
                self._log.create_session,
                env_name=actor.env_name,
                env_id=actor.env_id,
                group_id=actor.group_id,
                llm_model=self.model,
                episode=actor.episode,
            ),
            record_step=self._log.record_step,
            rules=self._rules,
            seed=actor.seed,
        )
        end: End = ("cancelled", "the run was cancelled")
        try:
            end = await episode.play()
        finally:
            await run_to_completion(
                self._end(actor, episode, hooks, end, started=started), name="interactor.end"
            )

    async def _end(
        self, actor: ActorHandle, episode: TextEpisode, hooks: HandlerCalls, end: End, *, started: float
    ) -> None:
        try:
            end = await self._finish(actor, episode, hooks, end)
        finally:
            try:
                self._record_end(actor, episode, end, perf_counter() - started)
            finally:
                await _bounded("pool", partial(self._release_actor, actor, episode.broken))

    async def _finish(self, actor: ActorHandle, episode: TextEpisode, hooks: HandlerCalls, end: End) -> End:
        """A fault of a hook or of the data manager fails an episode that was terminated or truncated."""
        await _bounded("environment", partial(self._access.release, actor, episode.environment))
        if not episode.started:
            return end
        call = partial(hooks.on_episode_end, total_reward=episode.total_reward, info=episode.info)
        fault = await _bounded("handler", call)
        if fault and end[0] in ENDED_WELL:
            end = ("failed", fault)
        outcome, reason = end
        fault = await _bounded(
            "data manager", partial(self._log.end_session, episode.session, outcome=outcome, reason=reason)
        )
        return ("failed", fault) if fault and outcome in ENDED_WELL else end

    def _record_end(self, actor: ActorHandle, episode: TextEpisode, end: End, seconds: float) -> None:
        record = TextEpisodeRecord(
            env_name=actor.env_name,
            env_id=actor.env_id,
            group_id=actor.group_id,
            session_id=session_id(episode.session) or episode.uid,
            outcome=end[0],
            reason=end[1],
            total_reward=episode.total_reward,
            steps=episode.steps,
            seconds=seconds,
        )
        self.episodes.append(record)
        log.debug("episode.ended", episode=record.key, outcome=end[0], reason=end[1], steps=record.steps)
        if self._on_record is not None:
            self._on_record(actor, record)

    async def _release_actor(self, actor: ActorHandle, broken: str) -> None:
        quarantine = getattr(self.pool, "quarantine", None)
        if broken and quarantine is not None:
            quarantine(actor, broken)
        await self.pool.done(actor)


async def _bounded(component: str, call: Callable[[], Awaitable[None]]) -> str:
    """The fault in one line; "" without one."""
    limit = asyncio.timeout(END_SECONDS)
    try:
        async with limit:
            await call()
    except (Exception, asyncio.CancelledError) as error:  # of user code: it ends this episode alone
        if is_cancellation(error):
            raise
        reason = f"no end within {END_SECONDS:g} s" if limit.expired() else reason_of(error)
        log.warning("episode.end_failed", at=component, reason=reason)
        return f"{component}, after the end: {reason}"
    return ""

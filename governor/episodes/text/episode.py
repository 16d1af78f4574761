"""One episode of a language model in a text environment: prompt, answer, step, until its end.

Rules:
1. `_at` names the component that the episode waits for: a fault names it. An environment that is interrupted during a call
   counts as broken, because its state is unknown.
2. Each step is requested once, with a key of its own; it is recorded before the next prompt.
3. The step of an answer that was cut off, and of an episode at its `max_steps`, is recorded like any other.
4. A user's object with plain `get_task_prompt()` and `step(action)` is played in a process of its own for that one episode,
   because a hang in this process could not be ended; one that cannot be sent there, in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from uuid import uuid4

from governor import logs
from governor.episodes.context import reports
from governor.episodes.info import InfoFigures, columns_of, reader_of
from governor.episodes.text.base_urls import session_id
from governor.episodes.text.environments import user_calls
from governor.episodes.text.environments.environment import EnvironmentFault, TextStep, shown
from governor.episodes.text.environments.process import NotSendable, TextProcess
from governor.episodes.text.session_log import total_reward_of
from governor.errors import UsageError
from governor.failures import Reason, reason_of
from governor.output.attribution import attributed, episode_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.episodes.info import Wanted
    from governor.episodes.text.actor_pool import ActorHandle
    from governor.episodes.text.chat_model import Answer
    from governor.episodes.text.environments.environment import Message, TextEnvironment
    from governor.episodes.text.environments.http_environment import HTTPEnvironments
    from governor.episodes.text.environments.thread import ThreadEnvironments
    from governor.episodes.text.session_log import SessionLog
    from governor.messages import EpisodeOutcome

Where: TypeAlias = Literal["environment", "model", "handler", "data manager"]
CUT_OFF: Final = "length"
"""The finish_reason of an answer that ran out of tokens."""
_METHODS: Final = ("reset:", "get_task_prompt:", "step:")
ENDED_WELL: Final = frozenset({"terminated", "truncated"})
START_SECONDS: Final = 60.0
"""How long the start of a process for one episode may take."""
END_SECONDS: Final = 30.0
"""How long `on_episode_end`, the data manager's `end_session` and the pool's `done` may take, each."""

log = logs.get_logger()


class Model(Protocol):
    async def answer(self, messages: list[Message], *, session: Any) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeContext:
    """What all episodes of an Interactor share. Times are in seconds; `timeout` is the deadline of a whole episode. So many
    characters of each answer, `preview`, go to the log at debug level.
    """

    max_steps: int
    message_cut: int
    environment_timeout: float
    timeout: float | None
    llm_model: str
    chat_model: Model
    handler: Any
    sessions: SessionLog
    connections: HTTPEnvironments
    threads: ThreadEnvironments
    preview: int = 0
    info: Wanted = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TextEpisodeRecord:
    """How one episode ended. `session_id` is unique, and the data manager's own where it has one. `total_reward` is that of the data
    manager's session where it has one, else the undiscounted sum so far, also if `result` is NaN; `steps` counts the environment's steps;
    `seconds` run from the lease to the end. `metrics`: figures of `info`, and of what the environment reports.
    """

    env_name: str
    env_id: str
    group_id: str
    session_id: str = field(default_factory=lambda: uuid4().hex)
    outcome: EpisodeOutcome = "cancelled"
    reason: str = "the run was cancelled"
    total_reward: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.env_name}_{self.env_id}"

    @property
    def result(self) -> float:
        return self.total_reward if self.outcome in ENDED_WELL else math.nan


def trim(prompt: list[Message], message_cut: int) -> list[Message]:
    """The system message, if the prompt begins with one, and the last 2 x `message_cut` - 1; the whole prompt if that is ≤ 0."""
    if message_cut <= 0:
        return prompt
    head = [
        message for message in prompt[:1] if isinstance(message, dict) and message.get("role") == "system"
    ]
    return head + prompt[len(head) :][1 - 2 * message_cut :]


class TextEpisode:
    """Played once: `play`, then `finish`. In the phase of a run an environment that has `reset(seed, timeout)` is reset first."""

    def __init__(self, actor: ActorHandle, context: EpisodeContext) -> None:
        self.actor: Final = actor
        self._context: Final = context
        self.record: Final = TextEpisodeRecord(
            env_name=actor.env_name, env_id=actor.env_id, group_id=actor.group_id
        )
        self._began = perf_counter()
        self._key: Final = self.record.session_id
        self._info: dict[str, Any] | None = None
        self._at: Where = "data manager"
        self._has_session = False
        self._session: Any = None
        self._environment: TextEnvironment | None = None
        self._in_call = ""
        self._fault = ""
        self._read = reader_of(context.info)
        self._figures = InfoFigures(context.info, columns_of(context.info))

    @property
    def broken(self) -> str:
        """The reason why the environment cannot be used again, or ""."""
        return self._fault or ("it was left in the middle of a call" if self._in_call else "")

    async def play(self) -> None:
        """Raises only a cancellation."""
        with attributed(**self._fields()):
            await self._play_in_time()

    def _fields(self) -> dict[str, Any]:
        """As of `attribution`: none outside of a run."""
        episode = self.actor.episode
        return {} if episode is None else episode_fields(reports.phase, episode, self.actor.evaluation)

    async def _play_in_time(self) -> None:
        record, limit = self.record, self._context.timeout
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                record.outcome, record.reason = await self._play()
        except EnvironmentFault as fault:
            self._fault = fault.reason
            record.outcome, record.reason = fault.outcome, _of_environment(reason_of(fault))
        except (Exception, asyncio.CancelledError) as error:  # from user code: it ends this episode only
            if is_cancellation(error):
                raise
            if deadline.expired():
                record.outcome = "timed_out"
                record.reason = f"not done within {limit:g} s, at work: the {self._at}"
                return
            where: str = self._at
            if self._in_call:
                self._fault = reason_of(error)
                where = f"{self._at}.{self._in_call}"
            record.outcome, record.reason = "failed", reason_of(error).within(where)

    async def finish(self) -> None:
        """Releases and records, in bounded time. A fault of the data manager fails an episode that was terminated or truncated."""
        environment, record = self._environment, self.record
        if isinstance(environment, TextProcess):
            record.metrics = record.metrics | environment.take_reported()
        if environment is not None and environment is not self.actor.local_env:
            await bounded("environment", environment.aclose())
        if self._has_session:
            total = total_reward_of(self._session)
            record.total_reward = record.total_reward if total is None else total
            names = {"env_name": record.env_name, "env_id": record.env_id}
            told = {"total_reward": record.total_reward, "info": self._info}
            await bounded("handler", self._hook("on_episode_end", None, **names, **told))
            sessions = self._context.sessions
            ending = sessions.end_session(self._session, outcome=record.outcome, reason=record.reason)
            fault = await bounded("data manager", ending)
            if fault and record.outcome in ENDED_WELL:
                record.outcome, record.reason = "failed", fault
        record.seconds = perf_counter() - self._began

    async def _hook(self, name: str, default: Any, *args: Any, **named: Any) -> Any:
        """What the user's hook returns; `default` without one."""
        hook = getattr(self._context.handler, name, None)
        if hook is None:
            return default
        return await user_calls.call(user_calls.in_own_thread, hook, *args, **named)

    async def _play(self) -> tuple[EpisodeOutcome, str]:
        """The outcome and its reason in one line."""
        context, seed = self._context, self.actor.seed
        self._session = await context.sessions.create_session(self.actor, llm_model=context.llm_model)
        self._has_session = True
        self.record.session_id = session_id(self._session) or self._key
        self._at = "environment"
        environment = self._environment = await self._open()
        reset = getattr(environment, "reset", None)
        if seed is not None and reset is not None:
            await self._called(reset, seed=seed, timeout=context.environment_timeout)
        for number in range(1, context.max_steps + 1):
            prompt = await self._prompt(environment, number)
            if not isinstance(prompt, list):
                return "terminated", f"the prompt is {shown(prompt)}, no list of messages"
            if not prompt:
                return "terminated", "the prompt was empty"
            self._at = "model"
            answer = await context.chat_model.answer(prompt, session=self._session)
            if context.preview:
                self._log_answer(number, answer)
            if answer.finish_reason == CUT_OFF:
                await self._record(number, prompt, answer, step=TextStep(0.0, True, True, {}))
                return "truncated", "the answer was cut off"
            step = await self._step(environment, number, answer.text)
            at_limit = number == context.max_steps and not (step.terminated or step.truncated)
            await self._record(
                number, prompt, answer, step=replace(step, truncated=True) if at_limit else step
            )
            if step.terminated:
                return "terminated", ""
            if step.truncated:
                return "truncated", ""
        return "truncated", f"max_steps {context.max_steps}"

    async def _open(self) -> TextEnvironment:
        """Raises UsageError for a handle without an environment, EnvironmentFault if no process can be started."""
        actor = self.actor
        local: Any = actor.local_env
        if actor.transport == "inproc" and local is not None:
            step = getattr(local, "step", None)
            if inspect.iscoroutinefunction(step) and "key" in inspect.signature(step).parameters:
                environment: TextEnvironment = local
                if isinstance(environment, TextProcess) and actor.episode is not None:
                    await environment.begin(**self._fields())
                return environment
            try:
                return await TextProcess.started(local, timeout=START_SECONDS)
            except NotSendable:
                if isinstance(local, type) or step is None:
                    raise
                return self._context.threads.environment(local)
        if actor.transport != "http" or not actor.base_url:
            raise UsageError(
                f"the actor has no environment: transport {actor.transport!r}, base_url {actor.base_url!r}"
            )
        return self._context.connections.environment(
            base_url=actor.base_url, env_name=actor.env_name, env_id=actor.env_id, headers=actor.headers
        )

    async def _called(self, method: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        self._at, self._in_call = "environment", getattr(method, "__name__", "call")
        value = await method(*args, **named)
        self._in_call = ""
        return value

    def _log_answer(self, number: int, answer: Answer) -> None:
        text = answer.text[: self._context.preview]
        reason = answer.finish_reason
        log.debug("episode.answer", episode=self.record.key, step=number, text=text, finish_reason=reason)

    async def _prompt(self, environment: TextEnvironment, number: int) -> Any:
        """Raises EnvironmentFault in a run, whose environment must return a list."""
        context = self._context
        prompt = await self._called(environment.get_task_prompt, timeout=context.environment_timeout)
        self._at = "handler"
        prompt = await self._hook("handle", prompt, self.actor.env_name, self.actor.env_id, number, prompt)
        if not isinstance(prompt, list):
            if self.actor.episode is not None:
                raise EnvironmentFault(f"get_task_prompt: {shown(prompt)} is no list of messages")
            return prompt
        return trim(prompt, context.message_cut)

    async def _step(self, environment: TextEnvironment, number: int, action: str) -> TextStep:
        """Raises EnvironmentFault in a run for an answer that lacks a name: it may be misspelt."""
        timeout = self._context.environment_timeout
        key = f"{self._key}.{number}"
        step: TextStep = await self._called(environment.step, action, key=key, timeout=timeout)
        if not math.isfinite(step.reward):
            raise EnvironmentFault(f"step: the reward is {step.reward}")
        if step.lacking and self.actor.episode is not None:
            raise EnvironmentFault(f"step: the answer has no {', '.join(step.lacking)}")
        self.record.steps, self._info = number, step.info if isinstance(step.info, dict) else None
        self.record.total_reward += step.reward
        if self._read is not None:
            self._figures.add(self._read(self._info or {}))
            self.record.metrics = self._figures.figures()
        return step

    async def _record(self, number: int, prompt: list[Message], answer: Answer, *, step: TextStep) -> None:
        self._at = "data manager"
        await self._context.sessions.record_step(
            self._session,
            step_id=number,
            messages=prompt,
            response=answer.text,
            step_reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            is_trainable=self._context.message_cut > 0 or step.terminated or step.truncated,
            weight_version=answer.weight_version,
            info=step.info,
        )


def _of_environment(reason: Reason) -> Reason:
    """``environment.step: ...``, as of other environments, where the reason begins with a method."""
    if reason.startswith(_METHODS):
        return Reason(f"environment.{reason}", reason.traceback)
    return reason.within("environment")


async def bounded(component: str, call: Awaitable[None]) -> str:
    """Waits for the end of `call`, `END_SECONDS` at most. The fault in one line; "" without one."""
    limit = asyncio.timeout(END_SECONDS)
    try:
        async with limit:
            await call
    except (Exception, asyncio.CancelledError) as error:  # of user code: it ends this episode alone
        if is_cancellation(error):
            raise
        reason = Reason(f"no end within {END_SECONDS:g} s") if limit.expired() else reason_of(error)
        log.warning("episode.end_failed", at=component, reason=reason)
        return reason.within(f"{component}, after the end")
    return ""


def is_cancellation(error: BaseException) -> bool:
    """Whether this task is cancelled. User code may raise CancelledError for other reasons, for instance for its own task."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0

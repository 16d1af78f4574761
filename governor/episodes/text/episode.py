"""One episode of a language model in a text environment: prompt, answer, step, until its end.

Rules:
1. `at` names the component that the episode waits for: a fault names it. An environment that is interrupted during a call
   counts as broken, because its state is unknown.
2. Each step is requested once, with a key of its own; it is recorded before the next prompt.
3. The step of an answer that was cut off, and of an episode at its `max_steps`, is recorded like any other.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from uuid import uuid4

from governor.episodes.entries import one_line
from governor.episodes.text.environments.environment import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentHung,
    TextStep,
)
from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.episodes.text.chat_model import Answer
    from governor.episodes.text.environments.environment import Message, TextEnvironment
    from governor.messages import EpisodeOutcome

Where: TypeAlias = Literal["environment", "model", "handler", "data manager"]
CUT_OFF: Final = "length"
"""The finish_reason of an answer that ran out of tokens."""


class Model(Protocol):
    async def answer(self, messages: list[Message], *, session: Any) -> Answer: ...


class Hooks(Protocol):
    async def handle(self, step: int, prompt: list[Message]) -> list[Message]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Times are in seconds. `timeout` is the deadline of the whole episode."""

    max_steps: int
    message_cut: int
    environment_timeout: float
    timeout: float | None


def trim(prompt: list[Message], message_cut: int) -> list[Message]:
    """The system message, if the prompt begins with one, and the last 2 x `message_cut` - 1; the whole prompt if that is ≤ 0."""
    if message_cut <= 0:
        return prompt
    head = [
        message for message in prompt[:1] if isinstance(message, dict) and message.get("role") == "system"
    ]
    return head + prompt[len(head) :][1 - 2 * message_cut :]


class TextEpisode:
    """Played once. `total_reward` is the undiscounted sum so far, `steps` the number of environment steps, `info` that of the last.

    `broken` is the reason why the environment cannot be used again, or "".
    """

    def __init__(
        self,
        *,
        open_environment: Callable[[], Awaitable[TextEnvironment]],
        model: Model,
        hooks: Hooks,
        open_session: Callable[[], Awaitable[Any]],
        record_step: Callable[..., Awaitable[None]],
        rules: Rules,
        seed: int | None = None,
    ) -> None:
        """With a `seed`, an environment that has `reset(seed, timeout)` is reset first."""
        self.session: Any = None
        self.environment: TextEnvironment | None = None
        self.started = False
        self.total_reward = 0.0
        self.steps = 0
        self.info: dict[str, Any] | None = None
        self.at: Where = "data manager"
        self.uid: Final = uuid4().hex
        self._open_environment = open_environment
        self._model = model
        self._hooks = hooks
        self._open_session = open_session
        self._record_step = record_step
        self._rules = rules
        self._seed = seed
        self._in_call = False
        self._fault = ""

    @property
    def broken(self) -> str:
        return self._fault or ("it was left in the middle of a call" if self._in_call else "")

    async def play(self) -> tuple[EpisodeOutcome, str]:
        """The outcome and its reason in one line. Raises only a cancellation."""
        deadline = asyncio.timeout(self._rules.timeout)
        try:
            async with deadline:
                return await self._play()
        except EnvironmentFault as fault:
            return self._outcome_of(fault)
        except (Exception, asyncio.CancelledError) as error:  # from user code: it ends this episode only
            if is_cancellation(error):
                raise
            if deadline.expired():
                return "timed_out", f"not done within {self._rules.timeout:g} s, at work: the {self.at}"
            if self._in_call:
                self._fault = reason_of(error)
            return "failed", f"{self.at}: {reason_of(error)}"

    def _outcome_of(self, fault: EnvironmentFault) -> tuple[EpisodeOutcome, str]:
        self._fault = fault.reason
        outcome: EpisodeOutcome = "failed"
        if isinstance(fault, EnvironmentHung):
            outcome = "timed_out"
        elif isinstance(fault, EnvironmentCrashed):
            outcome = "crashed"
        return outcome, f"environment: {fault.reason}"

    async def _play(self) -> tuple[EpisodeOutcome, str]:
        self.session = await self._open_session()
        self.started = True
        self.at = "environment"
        environment = self.environment = await self._open_environment()
        rules = self._rules
        reset = getattr(environment, "reset", None)
        if self._seed is not None and reset is not None:
            self._in_call = True
            await reset(seed=self._seed, timeout=rules.environment_timeout)
            self._in_call = False
        for number in range(1, rules.max_steps + 1):
            prompt = await self._prompt(environment, number)
            if not prompt:
                return "terminated", "the prompt was empty"
            self.at = "model"
            answer = await self._model.answer(prompt, session=self.session)
            if answer.finish_reason == CUT_OFF:
                await self._record(number, prompt, answer, step=TextStep(0.0, True, True, {}))
                return "truncated", "the answer was cut off"
            step = await self._step(environment, number, answer.text)
            at_limit = number == rules.max_steps and not (step.terminated or step.truncated)
            await self._record(
                number, prompt, answer, step=replace(step, truncated=True) if at_limit else step
            )
            if step.terminated:
                return "terminated", ""
            if step.truncated:
                return "truncated", ""
        return "truncated", f"max_steps {rules.max_steps}"

    async def _prompt(self, environment: TextEnvironment, number: int) -> list[Message]:
        self.at, self._in_call = "environment", True
        prompt = await environment.get_task_prompt(timeout=self._rules.environment_timeout)
        self._in_call = False
        self.at = "handler"
        prompt = await self._hooks.handle(number, prompt)
        if not isinstance(prompt, list):
            raise TypeError(f"the prompt is a {type(prompt).__name__}, not a list of messages")
        return trim(prompt, self._rules.message_cut)

    async def _step(self, environment: TextEnvironment, number: int, action: str) -> TextStep:
        self.at, self._in_call = "environment", True
        step = await environment.step(
            action, key=f"{self.uid}.{number}", timeout=self._rules.environment_timeout
        )
        self._in_call = False
        if not math.isfinite(step.reward):
            raise EnvironmentFault(f"the reward is {step.reward}")
        self.steps, self.info = number, step.info
        self.total_reward += step.reward
        return step

    async def _record(self, number: int, prompt: list[Message], answer: Answer, *, step: TextStep) -> None:
        self.at = "data manager"
        await self._record_step(
            self.session,
            step_id=number,
            messages=prompt,
            response=answer.text,
            step_reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            is_trainable=self._rules.message_cut > 0 or step.terminated or step.truncated,
            weight_version=answer.weight_version,
            info=step.info,
        )


def is_cancellation(error: BaseException) -> bool:
    """Whether this task is cancelled. User code may raise CancelledError for other reasons, for instance for its own task."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def reason_of(error: BaseException) -> str:
    """The reason in one line; a GovernorError has it in `reason`."""
    reason = getattr(error, "reason", None) if isinstance(error, GovernorError) else None
    return reason or one_line(error)

"""Text environments: their protocol, the check of their answers, and their faults; over HTTP and in a process of their own.

An environment returns a prompt (chat messages), takes an action (text), and returns a reward. All its answers are checked
here; an invalid one is an `EnvironmentFault` with place and reason in one line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes.text.http_retries import brief
from governor.errors import ConductorError
from governor.failures import one_line

if TYPE_CHECKING:
    from governor.messages import EpisodeOutcome

Message = dict[str, Any]
"""``{"role": ..., "content": ...}``."""


@dataclass(frozen=True, slots=True)
class TextStep:
    """The result of a step; `reward` is a finite float."""

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class TextEnvironment(Protocol):
    """For one episode at a time, one call at a time, without a batch axis. Each call raises EnvironmentFault."""

    async def get_task_prompt(self, *, timeout: float) -> list[Message]:  # noqa: ASYNC109
        """Chat messages; an empty list ends the episode. `timeout`: seconds for an attempt."""

    async def step(self, action: str, *, key: str, timeout: float) -> TextStep:  # noqa: ASYNC109
        """Takes the action, a text, once. `key` is unique for the session and the step. `timeout`: seconds for an attempt."""

    async def aclose(self) -> None:
        """Returns when its resources are released, in bounded time. May be called again."""


class EnvironmentFault(ConductorError):
    """An error of the environment: it refused, raised, or gave an invalid answer."""

    code = "environment"
    outcome: EpisodeOutcome = "failed"
    """That of the episode."""


class EnvironmentUnreachable(EnvironmentFault):
    """Transport errors or 5xx, after all retries."""


class EnvironmentHung(EnvironmentFault):
    """No answer by the deadline: its state is unknown, and it must not be used again."""

    outcome = "timed_out"


class EnvironmentCrashed(EnvironmentFault):
    """Its process has exited by itself."""

    outcome = "crashed"


def decoded(data: bytes, *, where: str) -> Any:
    """The JSON value in `data`, NaN and Infinity allowed. Raises EnvironmentFault."""
    try:
        value = json.loads(data)
        if (
            b"\\ud" in data.lower()
        ):  # half a surrogate pair is legal JSON, and no text that could be sent or stored
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        said = f" in {brief(data[:200].decode(errors='replace'))!r}" if data else ""
        raise EnvironmentFault(f"{where}: malformed JSON: {one_line(error)}{said}") from error
    return value


def prompt_of(value: Any) -> list[Message]:
    """`value` as chat messages. Raises EnvironmentFault."""
    if not isinstance(value, list):
        raise EnvironmentFault(f"get_task_prompt: {_shown(value)} is no list of messages")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EnvironmentFault(
                f"get_task_prompt: message {number}, {_shown(message)}, is no mapping with a role and content"
            )
        if not isinstance(message.get("content"), str | list | None):
            raise EnvironmentFault(
                f"get_task_prompt: the content of message {number} is {_shown(message['content'])}, not text"
            )
    return value


def step_of(value: Any) -> TextStep:
    """`value` as the answer to a step; a missing `info` is an empty one. Raises EnvironmentFault."""
    if not isinstance(value, dict):
        raise EnvironmentFault(
            f"step: {_shown(value)} is no mapping with reward, terminated, truncated and info"
        )
    missing = [name for name in ("reward", "terminated", "truncated") if name not in value]
    if missing:
        raise EnvironmentFault(f"step: the answer has no {', '.join(missing)}")
    for name in ("terminated", "truncated"):
        if not isinstance(value[name], bool):
            raise EnvironmentFault(f"step: {name} is {_shown(value[name])}, neither true nor false")
    info = value.get("info")
    if not isinstance(info, dict | None):
        raise EnvironmentFault(f"step: info is {_shown(info)}, no mapping")
    return TextStep(_reward(value["reward"]), value["terminated"], value["truncated"], info or {})


def _reward(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EnvironmentFault(f"step: the reward is {_shown(value)}, not a number")
    try:
        reward = float(value)
    except OverflowError:
        reward = float("inf")
    if not isfinite(reward):
        raise EnvironmentFault(f"step: the reward is {reward}")
    return reward


def _shown(value: Any) -> str:
    return brief(repr(value), 80)

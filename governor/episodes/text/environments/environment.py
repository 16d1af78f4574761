"""Text environments: their protocol, the check of their answers, and their faults; over HTTP and in a process of their own.

An environment returns a prompt (chat messages), takes an action (text), and returns a reward. All its answers are checked
here; an invalid one is an `EnvironmentFault` with place and reason in one line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

from governor.episodes.text.environments.child import STEP_NAMES
from governor.episodes.text.http_retries import LOOKED_AT, SHOWN, brief
from governor.errors import ConductorError
from governor.failures import one_line

if TYPE_CHECKING:
    from governor.messages import EpisodeOutcome

Message = dict[str, Any]
"""``{"role": ..., "content": ...}``."""


@dataclass(frozen=True, slots=True)
class TextStep:
    """The result of a step; `reward` is a finite float, `info` as the environment gave it, which should be a mapping. `lacking`: the
    names, without `info`, that its answer has not, or as null.
    """

    reward: float
    terminated: bool
    truncated: bool
    info: Any
    lacking: tuple[str, ...] = ()


class TextEnvironment(Protocol):
    """For one episode at a time, one call at a time, without a batch axis. Each call raises EnvironmentFault."""

    async def get_task_prompt(self, *, timeout: float) -> Any:  # noqa: ASYNC109
        """Chat messages, a list; an empty list ends the episode, and so does any other value outside of a run. `timeout`: seconds for an
        attempt.
        """

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
        said = f" in {brief(data[:LOOKED_AT].decode(errors='replace'), SHOWN)!r}" if data else ""
        raise EnvironmentFault(f"{where}: malformed JSON: {one_line(error)}{said}") from error
    return value


def prompt_of(value: Any) -> Any:
    """`value`, or its `messages` where it is a mapping with a list of them. Messages are checked. Raises EnvironmentFault."""
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    for number, message in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise EnvironmentFault(
                f"get_task_prompt: message {number}, {shown(message)}, is no mapping with a role and content"
            )
        if not isinstance(message.get("content"), str | list | None):
            raise EnvironmentFault(
                f"get_task_prompt: the content of message {number} is {shown(message['content'])}, not text"
            )
    return value


def step_of(value: Any) -> TextStep:
    """`value` as the answer to a step: a mapping with some of `STEP_NAMES`, or all four in a list. What is missing or null counts as
    0.0, false and {}, and is named in `lacking`; `info` may be anything. Raises EnvironmentFault.
    """
    if isinstance(value, list) and len(value) == len(STEP_NAMES):
        value = dict(zip(STEP_NAMES, value, strict=True))
    if not isinstance(value, dict) or not any(name in value for name in STEP_NAMES):
        raise EnvironmentFault(
            f"step: {shown(value)} is no mapping with reward, terminated, truncated and info"
        )
    info = value.get("info")
    lacking = tuple(name for name in STEP_NAMES if name != "info" and value.get(name) is None)
    return TextStep(
        _reward(value.get("reward")),
        _flag("terminated", value.get("terminated")),
        _flag("truncated", value.get("truncated")),
        {} if info is None else info,
        lacking,
    )


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | int | float | None):  # a text "false" would be true
        raise EnvironmentFault(f"step: {name} is {shown(value)}, neither true nor false")
    return bool(value)


def _reward(value: Any) -> float:
    try:
        reward = float(value or 0.0)
    except OverflowError:
        reward = float("inf")
    except (TypeError, ValueError):
        raise EnvironmentFault(f"step: the reward is {shown(value)}, not a number") from None
    if not isfinite(reward):
        raise EnvironmentFault(f"step: the reward is {reward}")
    return reward


def shown(value: Any) -> str:
    return brief(repr(value), 80)

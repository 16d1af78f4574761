"""`OnPolicyAlgorithm.collect_rollouts`, for steps that others take: PPO, A2C, TRPO.

Rules:
1. A rollout has `n_steps` steps of each stream on average: it is full when there are `n_steps` times as many steps as streams, whoever
   took them. In a vector that is `n_steps` of each, as in Stable-Baselines3; and a stream that is slow or ends keeps
   nobody waiting.
2. A stream's steps in a rollout are a segment. An episode that failed ends its segment. Advantages are computed for each segment
   by the buffer's own method, with the value of the observation behind its last step.
3. A step that was under way while the model was trained belongs to the next rollout, with the probability and the value
   that it was taken with.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.utils import obs_as_tensor

from governor.episodes.sb3.model import batch_of
from governor.episodes.sb3.streams import as_float

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.sb3.streams import Step, Stream, Streams
    from governor.episodes.transition import Transition

COLUMNS: Final = ("observation", "action", "reward", "starts", "value", "log_prob")


@dataclass(eq=False, slots=True)
class Segment:
    """Of the stream `key`. `rows` have the `COLUMNS`, each a batch of one. `following` is behind the last row, `done` says that
    the episode is over there. A stream goes on with its segment while that is `open`.
    """

    key: tuple[int, str]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    following: Any = None
    done: bool = False
    open: bool = True


class OnPolicy:
    """Collects for `model`. `train` trains it when a rollout is in its buffer."""

    def __init__(self, model: Any, streams: Streams, *, train: Callable[[], None]) -> None:
        self._model = model
        self._streams = streams
        self._train = train
        self._segments: list[Segment] = []
        self._fresh = True

    def act(self, observations: Sequence[Any], streams: Sequence[Stream]) -> tuple[Any, list[dict[str, Any]]]:  # noqa: ARG002  # as `OffPolicy.act`
        """Actions for the environments, and what the rollout needs to know of them."""
        model = self._model
        steps = self._steps()
        if self._fresh:
            self._fresh = False
            model.policy.set_training_mode(False)
            if model.use_sde:
                model.policy.reset_noise(len(observations))
        if (
            model.use_sde
            and model.sde_sample_freq > 0
            and (steps // self._streams.count) % model.sde_sample_freq == 0
        ):
            model.policy.reset_noise(len(observations))
        with torch.no_grad():
            actions, values, log_probs = model.policy(obs_as_tensor(batch_of(observations), model.device))
        actions = actions.cpu().numpy()
        values, log_probs = values.cpu().numpy(), log_probs.cpu().numpy()
        taken = actions
        if isinstance(model.action_space, spaces.Box):
            if model.policy.squash_output:
                taken = model.policy.unscale_action(actions)
            else:
                taken = np.clip(actions, model.action_space.low, model.action_space.high)
        return taken, [
            {"action": action, "value": value, "log_prob": log_prob}
            for action, value, log_prob in zip(actions, values, log_probs, strict=True)
        ]

    def learn(self, stream: Stream, step: Step, transition: Transition) -> None:
        """One step; trains when the rollout is full."""
        model, extras, reward = self._model, transition.extras, step.reward
        model.num_timesteps += 1
        model._update_info_buffer([step.info], step.done)
        if step.done[0] and step.info["TimeLimit.truncated"]:
            terminal = model.policy.obs_to_tensor(step.info["terminal_observation"])[0]
            with torch.no_grad():
                reward[0] += model.gamma * model.policy.predict_values(terminal)[0]
        segment = self._segment_of(stream)
        segment.rows.append(
            (
                step.observation,
                np.asarray(extras["action"])[None],
                reward,
                np.array([transition.step == 0]),
                as_float(extras["value"]),
                as_float(extras["log_prob"]),
            )
        )
        segment.following, segment.done = step.following, bool(step.done[0])
        if self._steps() >= model.n_steps * self._streams.count:
            self._fill()
            self._train()
            self._fresh = True

    def _segment_of(self, stream: Stream) -> Segment:
        for segment in self._segments:
            if segment.open and segment.key == stream.key:
                return segment
        self._segments.append(Segment(stream.key))
        return self._segments[-1]

    def cut(self, stream: Stream) -> None:
        """The stream's episode had no end."""
        self._segment_of(stream).open = False

    def _steps(self) -> int:
        return sum(len(each.rows) for each in self._segments)

    def _fill(self) -> None:
        """Rule 2."""
        model = self._model
        segments = sorted((each for each in self._segments if each.rows), key=lambda each: each.key)
        with torch.no_grad():
            behind = obs_as_tensor(batch_of([each.following for each in segments]), model.device)
            values = model.policy.predict_values(behind)
        buffer = model.rollout_buffer
        buffer.buffer_size = self._steps()
        buffer.reset()
        for segment in segments:
            for observation, action, reward, starts, value, log_prob in segment.rows:
                buffer.add(
                    observation, action, reward, starts, torch.from_numpy(value), torch.from_numpy(log_prob)
                )
        returns, end = [], 0
        for segment, value in zip(segments, values, strict=True):
            start, end = end, end + len(segment.rows)
            part = copy(buffer)
            part.buffer_size = end - start
            for name in ("rewards", "values", "episode_starts", "advantages"):
                setattr(part, name, getattr(buffer, name)[start:end])
            part.compute_returns_and_advantage(last_values=value, dones=np.array([segment.done]))
            returns.append(part.returns)
        buffer.returns = np.concatenate(returns)
        self._segments = []

    def state(self) -> list[dict[str, Any]]:
        """The rollout that is not full yet, as arrays."""
        return [
            {
                "stream": list(each.key),
                "following": each.following,
                "done": each.done,
                "open": each.open,
                **{name: batch_of([row[at] for row in each.rows]) for at, name in enumerate(COLUMNS)},
            }
            for each in self._segments
            if each.rows
        ]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Goes on with that rollout; the episodes that were under way do not. A stream whose episode was over goes on with its
        segment: in one more segment the values behind all would be computed in a larger batch, and differ in their last bit.
        """
        self._segments = []
        self._fresh = True
        for each in state:
            rows = list(zip(*(_rows(each[name]) for name in COLUMNS), strict=True))
            key = int(each["stream"][0]), str(each["stream"][1])
            goes_on = each["done"] and each.get("open", False)
            self._segments.append(Segment(key, rows, each["following"], each["done"], open=goes_on))


def _rows(batch: Any) -> list[Any]:
    """A batch as batches of one."""
    if isinstance(batch, dict):
        by_key = {key: _rows(value) for key, value in batch.items()}
        return [dict(zip(by_key, values, strict=True)) for values in zip(*by_key.values(), strict=True)]
    return [batch[at : at + 1] for at in range(len(batch))]

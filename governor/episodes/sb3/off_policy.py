"""`OffPolicyAlgorithm.collect_rollouts`, for steps that others take: DQN, SAC, TD3, DDPG, and those of sb3_contrib.

Rules:
1. Steps of all streams go to one replay buffer, as of one environment. `train_freq` counts the steps of each stream, as in
   Stable-Baselines3: with four streams and `train_freq: 4` the model is trained after each 16 steps.
2. A buffer that reads on from a step to the next (n-step returns, `optimize_memory_usage`, one of the user's own) gets the steps of
   several streams episode by episode, when they are over. An episode that failed is left out then.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import TrainFrequencyUnit

from governor.episodes.sb3.model import UNBOUNDED, batch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from governor.episodes.sb3.streams import Step, Stream, Streams
    from governor.episodes.transition import Transition

UNORDERED: Final = (ReplayBuffer, DictReplayBuffer)


class OffPolicy:
    """Collects for `model`. `train` trains it, `logged` is told of the end of an episode."""

    def __init__(
        self,
        model: Any,
        streams: Streams,
        *,
        train: Callable[..., None],
        logged: Callable[[], None],
    ) -> None:
        self._model = model
        self._streams = streams
        self._train = train
        self._logged = logged
        self._ordered = model.optimize_memory_usage or type(model.replay_buffer) not in UNORDERED
        self._waiting: dict[Any, list[tuple[Any, ...]]] = {}
        self._collected = self._episodes = 0
        self._fresh = True

    def act(self, observations: Sequence[Any], streams: Sequence[Stream]) -> tuple[Any, list[dict[str, Any]]]:
        """Actions for the environments, and those for the buffer."""
        model = self._model
        if self._fresh:
            self._fresh = False
            model.policy.set_training_mode(False)
            if model.use_sde:
                model.actor.reset_noise(len(observations))
        collected = self._collected // self._streams.count
        if model.use_sde and model.sde_sample_freq > 0 and collected % model.sde_sample_freq == 0:
            model.actor.reset_noise(len(observations))
        model._last_obs = batch_of(observations)
        noise = None if model.action_noise is None else self._noise_of(streams)
        actions, stored = model._sample_action(model.learning_starts, noise, len(observations))
        return actions, [{"action": action} for action in stored]

    def _noise_of(self, streams: Sequence[Stream]) -> Callable[[], Any]:
        for stream in streams:
            if stream.noise is None:
                stream.noise = deepcopy(self._model.action_noise)
        return lambda: np.stack([stream.noise() for stream in streams])

    def learn(self, stream: Stream, step: Step, transition: Transition) -> None:
        """One step; trains when it is time."""
        model = self._model
        model.num_timesteps += 1
        self._collected += 1
        model._update_info_buffer([step.info], step.done)
        self._store(stream, step, np.asarray(transition.extras["action"])[None])
        if model._total_timesteps < UNBOUNDED:
            done = min(model.num_timesteps, model._total_timesteps)
            model._update_current_progress_remaining(done, model._total_timesteps)
        model._on_step()
        if step.done[0]:
            self._episodes += 1
            model._episode_num += 1
            if stream.noise is not None:
                stream.noise.reset()
            self._logged()
        if self._is_due():
            self._train_now()

    def _store(self, stream: Stream, step: Step, action: Any) -> None:
        model = self._model
        made = (action, step.following, step.reward, step.done, [step.info])
        if not self._ordered or self._streams.count == 1:
            model._store_transition(model.replay_buffer, *made)
            return
        waiting = self._waiting.setdefault(stream.key, [])
        waiting.append((model._last_obs, model._last_original_obs, made))
        if step.done[0]:
            del self._waiting[stream.key]
            for model._last_obs, model._last_original_obs, each in waiting:
                model._store_transition(model.replay_buffer, *each)

    def _is_due(self) -> bool:
        frequency = self._model.train_freq
        if frequency.unit == TrainFrequencyUnit.STEP:
            return self._collected >= int(frequency.frequency) * self._streams.count
        return self._episodes >= int(frequency.frequency)

    def _train_now(self) -> None:
        model = self._model
        collected, self._collected, self._episodes = self._collected, 0, 0
        self._fresh = True
        steps = model.gradient_steps if model.gradient_steps >= 0 else collected
        if steps > 0 and model.num_timesteps > model.learning_starts and model.replay_buffer.size() > 0:
            self._train(batch_size=model.batch_size, gradient_steps=steps)

    def cut(self, stream: Stream) -> None:
        """The stream's episode had no end: nothing reads on from its last step."""
        buffer = self._model.replay_buffer
        self._waiting.pop(stream.key, None)
        if stream.noise is not None:
            stream.noise.reset()
        if self._ordered and self._streams.count == 1 and buffer.size():
            ends = buffer.timeouts if buffer.handle_timeout_termination else buffer.dones
            ends[(buffer.pos - 1) % buffer.buffer_size] = True

    def state(self) -> list[int]:
        """Where it is between two trainings."""
        return [self._collected, self._episodes]

    def load(self, state: Sequence[int]) -> None:
        self._collected, self._episodes = state
        self._waiting = {}
        self._fresh = True

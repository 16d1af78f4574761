"""An algorithm of Stable-Baselines3 with the methods of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from governor.episodes.sb3 import model as models
from governor.episodes.sb3 import state as states
from governor.episodes.sb3.off_policy import OffPolicy
from governor.episodes.sb3.on_policy import OnPolicy
from governor.episodes.sb3.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.episodes.transition import Episode, Transition


class Agent:
    """`algorithm` is a class of Stable-Baselines3 (`PPO`), or of another module (`sb3_contrib.TQC`). `total_timesteps` is the
    length of the training, for what depends on its progress. `model` is the file of a saved model to begin from. `normalize` wraps
    the environments in `VecNormalize`, with these arguments. All other arguments are the algorithm's own.
    """

    streams = "any"
    not_exact = "what an agent of Stable-Baselines3 learned after its last save is not replayed"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        seed: int,
        *,
        algorithm: str,
        model: str | None = None,
        total_timesteps: int | None = None,
        log_interval: int | None = None,
        normalize: bool | dict[str, Any] = False,
        save_replay_buffer: bool = True,
        **params: Any,
    ) -> None:
        """Raises ValueError and ImportError for what cannot be trained here, and what Stable-Baselines3 raises."""
        self._settings = models.Settings(
            algorithm=algorithm,
            model=model,
            total_timesteps=total_timesteps,
            log_interval=log_interval,
            normalize=normalize,
            save_replay_buffer=save_replay_buffer,
            params=params,
        )
        self._spaces = observation_space, action_space
        self.model = models.make(self._settings, observation_space, action_space, seed=seed)
        self.weight_version = 0
        self._iterations = 0
        self._figures: dict[str, float] = {}
        self._streams = Streams(self.model)
        self._collector: OnPolicy | OffPolicy
        if isinstance(self.model, OnPolicyAlgorithm):
            self._collector = OnPolicy(self.model, self._streams, train=self._train_on_policy)
        else:
            self._collector = OffPolicy(
                self.model, self._streams, train=self._train, logged=self._episode_logged
            )

    # -- playing --------------------------------------------------------------------------------------------

    def begin(self, episode: Episode) -> None:
        """As in `Agent` of `governor.episodes`."""
        if episode.explore:
            for stream in self._streams.begin(episode.worker, episode.workers):
                self._collector.cut(stream)

    def act(self, observation: Any, *, explore: bool, worker: int = 0, player: str = "") -> Any:
        """Likewise."""
        if not explore:
            return self.model.predict(self._streams.transformed(observation), deterministic=True)[0][0]
        stream = self._streams.of(worker, player)
        actions, extras = self._collector.act([self._streams.see(stream, observation)], [stream])
        return actions[0], extras[0]

    def act_many(self, observations: Any, *, explore: bool, worker: Sequence[int]) -> Any:
        """Likewise."""
        rows = models.rows_of(observations, len(worker))
        if not explore:
            seen = models.batch_of([self._streams.transformed(row) for row in rows])
            return self.model.predict(seen, deterministic=True)[0]
        order = np.argsort(worker)  # that of the environments in Stable-Baselines3
        streams = [self._streams.of(int(worker[row])) for row in order]
        seen = [self._streams.see(stream, rows[row]) for stream, row in zip(streams, order, strict=True)]
        actions, extras = self._collector.act(seen, streams)
        back = np.argsort(order)
        return actions[back], [extras[row] for row in back]

    def learn(self, transition: Transition) -> None:
        """Likewise."""
        stream = self._streams.of(transition.worker, transition.player)
        step = self._streams.step(stream, transition)
        self._collector.learn(stream, step, transition)

    def metrics(self) -> dict[str, float]:
        """What the algorithm logged in trainings since the last call, as `train/loss`."""
        figures, self._figures = self._figures, {}
        return figures

    # -- training -------------------------------------------------------------------------------------------

    def _train_on_policy(self) -> None:
        model = self.model
        self._iterations += 1
        if model._total_timesteps < models.UNBOUNDED:
            done = min(model.num_timesteps, model._total_timesteps)
            model._update_current_progress_remaining(done, model._total_timesteps)
        if self._iterations % (self._settings.log_interval or 1) == 0:
            self._dump(self._iterations)
        self._train()

    def _train(self, **arguments: int) -> None:
        self.model.train(**arguments)
        self.weight_version += 1
        logged = self.model.logger.name_to_value
        self._figures |= {
            name: float(value)
            for name, value in logged.items()
            if name.startswith("train/") and isinstance(value, int | float)
        }

    def _episode_logged(self) -> None:
        if self.model._episode_num % (self._settings.log_interval or 4) == 0:
            self._dump()

    def _dump(self, *iterations: int) -> None:
        """Writes Stable-Baselines3's own table, where somebody reads it."""
        if self.model.logger.output_formats:
            self.model.dump_logs(*iterations)

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, and all that goes on from there."""
        state = self.weights()
        state |= states.rest_of(self.model, replay_buffer=self._settings.save_replay_buffer)
        state["collector"] = self._collector.state()
        state["iterations"] = self._iterations
        state["made_of"] = states.made_of(self._settings, *self._spaces)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was taken, with new episodes."""
        self.load_weights(state)
        states.load_rest(self.model, state)
        self._collector.load(state["collector"])
        self._iterations = state["iterations"]

    def weights(self) -> dict[str, Any]:
        """What a copy of the agent needs to act."""
        return {"algorithm": type(self.model).__name__, "trainings": self.weight_version} | states.weights_of(
            self.model
        )

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Takes over `weights()`, and leaves the random generators alone."""
        name = type(self.model).__name__
        if state.get("algorithm") != name:
            raise ValueError(f"it is a state of {state.get('algorithm')}, and this agent is {name}")
        states.load_weights(self.model, state)
        self.weight_version = state["trainings"]

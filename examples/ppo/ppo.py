"""PPO in one file, in the manner of CleanRL: a network, `act` and one update for n steps of m environments.

(Schulman et al., Proximal policy optimization algorithms, 2017; the details are those of Huang et al., The 37 implementation
details of proximal policy optimization, 2022. Unlike there, an episode that a step limit cuts is bootstrapped.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical


def layer(inputs: int, outputs: int, gain: float = np.sqrt(2)) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain)
    )  # fmt: skip


class PPO:
    """For vectors of observations and discrete actions.

    Args:
        rollout_steps: steps of each environment in an update (n).
        updates: after so many the learning rate is 0; None keeps it.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        seed: int,
        *,
        rollout_steps: int = 128,
        learning_rate: float = 2.5e-4,
        updates: int | None = None,
        epochs: int = 4,
        minibatches: int = 4,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        entropy: float = 0.01,
        value: float = 0.5,
        max_grad_norm: float = 0.5,
    ) -> None:
        torch.manual_seed(seed)
        self.rollout_steps = rollout_steps  # `learn_batch` gets so many steps of each environment
        self.learning_rate, self.updates, self.epochs, self.minibatches = (
            learning_rate,
            updates,
            epochs,
            minibatches,
        )
        self.gamma, self.gae_lambda, self.clip = gamma, gae_lambda, clip
        self.entropy, self.value, self.max_grad_norm = entropy, value, max_grad_norm
        inputs = observation_space.shape[0]
        self.actor, self.critic = network(inputs, int(action_space.n), 0.01), network(inputs, 1, 1.0)
        self.net = nn.ModuleList([self.actor, self.critic])
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=learning_rate, eps=1e-5)
        self.update = 0
        self.figures: dict[str, float] = {}

    def act(self, observation: Any, *, explore: bool) -> Any:
        actions, extras = self.act_many(observation[None], explore=explore)
        return actions[0], {name: values[0] for name, values in extras.items()}

    @torch.no_grad()
    def act_many(self, observations: Any, *, explore: bool) -> Any:
        """Beside the actions what the update needs to know of them; it gets that back with the rollout."""
        seen = torch.as_tensor(observations, dtype=torch.float32)
        chances = Categorical(logits=self.actor(seen))
        actions = chances.sample() if explore else chances.logits.argmax(-1)
        extras = {"logprob": chances.log_prob(actions), "value": self.critic(seen)[:, 0]}
        return actions.numpy(), {name: values.numpy() for name, values in extras.items()}

    def learn_batch(self, rollout: Any) -> None:
        """Arrays of the rollout are (n, m, ...); row t + 1 of a column follows row t, over the ends of episodes."""
        seen = torch.as_tensor(rollout.observation, dtype=torch.float32)
        logprob, value = (torch.as_tensor(rollout.extras[name]) for name in ("logprob", "value"))
        advantage = self._advantages(rollout, value)
        batch = [
            each.flatten(0, 1)
            for each in (seen, torch.as_tensor(rollout.action), logprob, advantage, advantage + value)
        ]
        if self.updates is not None:
            left = max(0.0, 1.0 - self.update / self.updates)
            self.optimizer.param_groups[0]["lr"] = left * self.learning_rate
        rows = len(batch[0])
        for _ in range(self.epochs):
            for chosen in torch.randperm(rows).split(-(-rows // self.minibatches)):
                self._step(*(each[chosen] for each in batch))
        self.update += 1

    @torch.no_grad()
    def _advantages(self, rollout: Any, value: Tensor) -> Tensor:
        """Generalized advantage estimation. Only what is terminated has no future; what was cut has that of its last observation."""
        following = self.critic(torch.as_tensor(rollout.next_observation, dtype=torch.float32))[..., 0]
        going_on = 1.0 - torch.as_tensor(rollout.terminated, dtype=torch.float32)
        same_episode = 1.0 - torch.as_tensor(rollout.ends, dtype=torch.float32)
        error = (
            torch.as_tensor(rollout.reward, dtype=torch.float32) + self.gamma * going_on * following - value
        )
        found, last = torch.zeros_like(value), torch.zeros_like(value[0])
        for t in reversed(range(len(value))):
            found[t] = last = error[t] + self.gamma * self.gae_lambda * same_episode[t] * last
        return found

    def _step(self, seen: Tensor, action: Tensor, logprob: Tensor, advantage: Tensor, target: Tensor) -> None:
        chances = Categorical(logits=self.actor(seen))
        ratio = (chances.log_prob(action) - logprob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -torch.min(
            advantage * ratio, advantage * ratio.clamp(1 - self.clip, 1 + self.clip)
        ).mean()
        value_loss = 0.5 * (self.critic(seen)[:, 0] - target).square().mean()
        entropy = chances.entropy().mean()
        loss = policy_loss + self.value * value_loss - self.entropy * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.figures = {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy": entropy.item(),
        }

    def metrics(self) -> dict[str, float]:
        return self.figures

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "update": self.update,
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_weights(state)
        torch.set_rng_state(state["random"])

    def load_weights(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.update = state["update"]

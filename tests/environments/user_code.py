"""User code of the runs: an agent that acts by lot, and wrappers that write down what an environment returned."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from tests.environments.values import of_space


class Log:
    """Tuples in a file, one after the other; whoever dies leaves what it has written. Each process has a file of its own."""

    def __init__(self, folder: str, name: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._file = Path(folder, f"{name}.{os.getpid()}").open("ab")  # noqa: SIM115  # until the process ends

    def write(self, *event: Any) -> None:
        pickle.dump(event, self._file)
        self._file.flush()


class ByLot:
    """Draws each action from its space: of the allowed ones, if there is a mask. It writes down what it sees and does."""

    def __init__(
        self, observation_space: Any, action_space: Any, seed: int, *, folder: str, name: str
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        action_space.seed(seed)
        self.log = Log(folder, f"{name}.agent")

    def act(self, observation: Any, *, explore: bool, player: str = "", action_mask: Any = None) -> Any:
        action = self.action_space.sample(action_mask)
        self.log.write(
            "act",
            player or "",
            of_space(self.observation_space, observation, exact=True),
            of_space(self.action_space, action),
        )
        return action


def logged(environment: Any, *, folder: str, name: str) -> Any:
    """The environment in the wrapper of its kind."""
    if hasattr(environment, "agent_iter"):
        kind: type[Logged] = LoggedTurns
    else:
        kind = LoggedParallel if hasattr(environment, "possible_agents") else Logged
    return kind(environment, Log(folder, name))


class Logged:
    """An environment of one player."""

    def __init__(self, environment: Any, log: Log) -> None:
        self.environment = environment
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)

    def reset(self, *, seed: int | None = None) -> Any:
        observation, info = self._call("reset", seed=seed)
        self.log.write("reset", seed, of_space(self.observation_space, observation))
        return observation, info

    def step(self, action: Any) -> Any:
        taken = of_space(self.action_space, action)
        returned = self._call("step", action)
        observation, reward, terminated, truncated, _ = returned
        seen = of_space(self.observation_space, observation)
        self.log.write("step", taken, seen, float(reward), bool(terminated), bool(truncated))
        return returned

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "reset":
            self.log.write("resets", named["seed"])
        try:
            return getattr(self.environment, method)(*arguments, **named)
        except Exception as error:
            self.log.write("raised", method, f"{type(error).__name__}: {error}")
            raise


class LoggedParallel(Logged):
    """An environment of several players who act together."""

    def reset(self, *, seed: int | None = None) -> Any:
        observations, infos = self._call("reset", seed=seed)
        self.log.write("reset all", seed, self._seen(observations))
        return observations, infos

    def step(self, actions: Any) -> Any:
        taken = {player: of_space(self.action_space(player), action) for player, action in actions.items()}
        returned = self._call("step", actions)
        observations, rewards, terminations, truncations, _ = returned
        ends = {player: (bool(terminations[player]), bool(truncations[player])) for player in taken}
        rewards = {player: float(rewards[player]) for player in taken}
        self.log.write("step all", taken, self._seen(observations), rewards, ends)
        return returned

    def _seen(self, observations: Any) -> dict[str, Any]:
        return {player: of_space(self.observation_space(player), one) for player, one in observations.items()}


class LoggedTurns(Logged):
    """An environment of several players who act in turns."""

    def reset(self, *, seed: int | None = None) -> None:
        self._call("reset", seed=seed)
        self.log.write("reset turns", seed)

    def last(self) -> Any:
        returned = self._call("last")
        observation, reward, terminated, truncated, _ = returned
        player = self.agent_selection
        seen = of_space(self.observation_space(player), observation)
        self.log.write("last", player, seen, float(reward), bool(terminated), bool(truncated))
        return returned

    def step(self, action: Any) -> None:
        player = self.agent_selection
        taken = None if action is None else of_space(self.action_space(player), action)
        self._call("step", action)
        self.log.write("turn", player, taken)

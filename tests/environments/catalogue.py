"""Which environments are played: all that the installed packages register or have as modules.

Rule: the packages say what there is. Nothing is left out because it does not play.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium

if TYPE_CHECKING:
    from collections.abc import Iterator

GYMNASIUM: Final = ("classic_control", "toy_text", "box2d", "mujoco")
PETTINGZOO: Final = ("classic", "butterfly", "sisl")
OLDER: Final = "ale-py, older names"
"""The group of v0 and v4 of Atari's games, which are those of v5 with other keywords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """An environment that is to be played: `entry` as in a run file, at most `max_steps` of an episode. `agent`, as in a run file, plays
    it; None: one that draws its actions.
    """

    group: str
    name: str
    entry: str
    max_steps: int
    agent: dict[str, Any] | None = None

    def build(self) -> Any:
        """By the package alone."""
        module, _, attribute = self.entry.partition(":")
        if module == "gymnasium":
            imported, _, identifier = attribute.rpartition(":")
            if imported:
                import_module(imported)
            return gymnasium.make(identifier, disable_env_checker=True)
        return getattr(import_module(module), attribute)()


def games() -> Iterator[Game]:
    known = set(gymnasium.registry)
    yield from of_gymnasium()
    for package, steps in (("minigrid", 50), ("ale_py", 10)):
        import_module(package)
        new = sorted(set(gymnasium.registry) - known)
        known |= {*new}
        for name in new:
            yield Game(
                group=_group(package, name),
                name=name,
                entry=f"gymnasium:{package}:{name}",
                max_steps=steps,
            )
    for family in PETTINGZOO:
        yield from _of_pettingzoo(family)
    if find_spec("stable_baselines3") is not None:
        yield from _of_stable_baselines3()


def of_gymnasium() -> list[Game]:
    """Those that are registered: before other packages are imported, its own."""
    return sorted(map(_of_gymnasium, gymnasium.registry), key=lambda game: (game.group, game.name))


def _of_gymnasium(name: str) -> Game:
    found = gymnasium.registry[name].entry_point
    text = found if isinstance(found, str) else getattr(found, "__name__", "")
    family = next((one for one in GYMNASIUM if one.partition("2d")[0] in text or one in text), "other")
    return Game(group=f"gymnasium {family}", name=name, entry=f"gymnasium:{name}", max_steps=50)


def _group(package: str, name: str) -> str:
    if package == "minigrid":
        return f"minigrid {name.partition('-')[0]}"
    return "ale-py" if name.startswith("ALE/") else OLDER


def _of_pettingzoo(family: str) -> Iterator[Game]:
    folder = Path(import_module(f"pettingzoo.{family}").__file__ or "").parent
    for path in sorted(folder.glob("*_v[0-9]*.py")):
        module = f"pettingzoo.{family}.{path.stem}"
        for kind, steps in (("env", 40), ("parallel_env", 10)):
            try:
                factory = getattr(import_module(module), kind, None)
            except Exception:  # noqa: BLE001  # it is played, and says so itself
                factory = None if kind == "parallel_env" else import_module
            if factory is None:
                continue
            game = Game(
                group=f"pettingzoo {family}",
                name=f"{path.stem}:{kind}",
                entry=f"{module}:{kind}",
                max_steps=steps,
            )
            yield game


def _of_stable_baselines3() -> Iterator[Game]:
    """Its algorithms with an environment each."""
    for algorithm, name, params in (
        ("PPO", "CartPole-v1", {"n_steps": 64, "n_epochs": 2}),
        ("A2C", "CartPole-v1", {}),
        ("DQN", "CartPole-v1", {"learning_starts": 50, "total_timesteps": 1000}),
        ("SAC", "Pendulum-v1", {"learning_starts": 50, "train_freq": 25, "batch_size": 32}),
    ):
        yield Game(
            group="stable-baselines3",
            name=f"{algorithm} in {name}",
            entry=f"gymnasium:{name}",
            max_steps=50,
            agent={
                "entry": "governor.episodes.sb3:Agent",
                "params": {"algorithm": algorithm, "device": "cpu", **params},
            },
        )


def players_apart(environment: Any) -> tuple[str, ...]:
    """The players of an environment, if one agent cannot play them all."""
    names = getattr(environment, "possible_agents", ())
    spaces = [(environment.observation_space(one), environment.action_space(one)) for one in names]
    return () if all(both == spaces[0] for both in spaces) else tuple(names)

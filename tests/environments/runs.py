"""Plays games: several in one run, each in a phase of its own, and compares what is on record with what was returned.

Rules:
1. Each game has its own environment and agent in the run file, so through conductors each has its own processes.
2. A run that does not finish is played again in two halves, until the game is found that is to blame.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import governor
from governor.errors import GovernorError
from tests.environments import comparison
from tests.environments.catalogue import players_apart
from tests.environments.comparison import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.environments.catalogue import Game

Transport: TypeAlias = Literal["in_process", "conductors"]
ROOT: Final = str(Path(__file__).resolve().parents[2])
"""Must be on PYTHONPATH: the runs import `USER_CODE`."""
USER_CODE: Final = "tests.environments.user_code"
GOOD: Final = frozenset({"terminated", "truncated"})
MOST: Final = 3
"""Differences that are told of one game."""


@dataclass(slots=True, kw_only=True)
class Played:
    """`faults` are ours; `raised` is what the environment itself raised."""

    game: Game
    transport: Transport
    episodes: int = 0
    steps: int = 0
    faults: list[str] = field(default_factory=list)
    raised: str = ""


def play(
    games: Sequence[Game], transport: Transport, folder: Path, *, episodes: Callable[[Game], int]
) -> list[Played]:
    """`folder` is made and removed."""
    folder.mkdir(parents=True)
    try:
        path = folder / "run.json"
        path.write_text(json.dumps(_run_file(games, transport, folder / "returned", episodes)))
        result = governor.run(path, state_dir=folder / "state", progress=False)
        if result.outcome == "finished":
            return [
                _played(result, f"game{place}", game, transport, folder / "returned")
                for place, game in enumerate(games)
            ]
        reason = result.reason
    except GovernorError as error:  # the run file has a fault
        reason = str(error)
    finally:
        shutil.rmtree(folder)
    if len(games) == 1:
        return [Played(game=games[0], transport=transport, faults=[reason])]
    half = len(games) // 2
    return [
        played
        for part in (games[:half], games[half:])
        for played in play(part, transport, folder, episodes=episodes)
    ]


def _run_file(
    games: Sequence[Game], transport: Transport, returned: Path, episodes: Callable[[Game], int]
) -> dict[str, Any]:
    environments, agents, phases = {}, {}, []
    for place, game in enumerate(games):
        name = f"game{place}"
        log = {"folder": str(returned), "name": name}
        environments[name] = {
            "entry": game.entry,
            "wrappers": [{"entry": f"{USER_CODE}:logged", "params": log}],
        }
        players = _players(game)
        mine = {player: f"{name}-{number}" for number, player in enumerate(players or (ALONE,))}
        agents |= {
            agent: game.agent or {"entry": f"{USER_CODE}:ByLot", "params": {**log, "name": agent}}
            for agent in mine.values()
        }
        phases.append(
            {
                "name": name,
                "on_failure": "continue",
                "simulate": {
                    "environment": name,
                    "agents": mine if players else [*mine.values()],
                    "episodes": episodes(game),
                    "max_steps": game.max_steps,
                    "episode_timeout": "60s",
                    "transport": transport,
                },
            }
        )
    conductors = {"environments": environments, "agents": agents}
    return {"name": f"play-{transport}", "seed": 1, "conductors": conductors, "phases": phases}


def _players(game: Game) -> tuple[str, ...]:
    if not game.entry.startswith("pettingzoo"):
        return ()
    try:
        environment = game.build()
    except Exception:  # noqa: BLE001  # what is wrong is found when it is played
        return ()
    return players_apart(environment)


def _played(result: governor.Result, name: str, game: Game, transport: Transport, folder: Path) -> Played:
    phase = result.phases[name]
    events = [*comparison.events_in(folder, name)]
    asked, made, raised = sum(phase.episodes.values()), comparison.returned(events), comparison.raised(events)
    played = Played(game=game, transport=transport, raised=raised[0] if raised else "")
    played.episodes = sum(phase.episodes.get(outcome, 0) for outcome in GOOD)
    if not played.episodes or played.episodes + len(raised) != asked:
        played.faults.append(phase.first_failure or f"{phase.end}: {phase.episodes}")
    if not played.episodes:
        return played
    steps = result.steps(name)
    played.steps = steps.num_rows
    kept = comparison.recorded(steps)
    played.faults += islice(_differences(made, kept, game), MOST)
    if played.episodes == asked and game.agent is None:
        agents = comparison.events_in(folder, f"{name}-*.agent")
        played.faults += islice(comparison.unseen(agents, kept), MOST)
    return played


def _differences(
    made: dict[int, comparison.Episode], kept: dict[int, list[dict[str, comparison.Row]]], game: Game
) -> Iterator[str]:
    for number, (seed, rows) in enumerate(kept.items()):
        if seed not in made:
            yield f"episode {number}: seed {seed} was not played"
            continue
        episode = made[seed]
        if not episode.raised:
            for text in comparison.differences(episode, rows, max_steps=game.max_steps):
                yield f"episode {number}, {text}"

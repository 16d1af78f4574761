"""What is on record of a phase, beside what its environment returned and what its agents saw and did.

Rules:
1. Values are compared exactly. Where players take turns, a reward is what `last()` says at the player's next turn. The record has it
   in parts, of each step: their sum may differ in the last digits of float32.
2. The step that `max_steps` cuts is truncated for all who took part in it.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import dataclass, field
from math import isclose
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.environments.values import of_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

ALONE: Final = ""
"""The player of an environment that has only one."""
NAMES: Final = ("observation", "action", "reward", "terminated", "truncated")


class Row(NamedTuple):
    """A step of a player; `observation` and `action` are None where it did not act."""

    observation: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool


NOTHING: Final = Row(None, None, 0.0, False, False)


class Turn(NamedTuple):
    """What `last()` said of a player after so many `steps` of the episode."""

    steps: int
    player: str
    reward: float
    terminated: bool
    truncated: bool


@dataclass(slots=True)
class Episode:
    """As the environment has played it. `steps` by player; `turns` where players take turns: there rows have no reward."""

    steps: list[dict[str, Row]] = field(default_factory=list)
    turns: list[Turn] | None = None
    raised: str = ""


def events_in(folder: Path, name: str) -> Iterator[tuple[Any, ...]]:
    """What `user_code.Log` has written under this name; the last event of a process that was killed may be cut."""
    for path in sorted(folder.glob(f"{name}.[0-9]*")):
        with path.open("rb") as file:
            while True:
                try:
                    yield pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    break


def raised(events: Iterable[tuple[Any, ...]]) -> list[str]:
    """What the environment has raised, with the method, and which resets did not return."""
    found: list[str] = []
    resetting: list[int] = []
    for kind, *values in [*events, ("end",)]:
        if resetting and kind in {"resets", "end"}:
            found.append(f"reset(seed={resetting[0]}) does not return")
        resetting = values if kind == "resets" else []
        if kind == "raised":
            found.append(f"{values[0]}: {values[1]}")
    return found


def returned(events: Iterable[tuple[Any, ...]]) -> dict[int, Episode]:
    """The episodes of an environment, by seed: the last one, of those that were played again."""
    episodes: dict[int, Episode] = {}
    current = Episode()
    seen: dict[str, Any] = {}
    for event in events:
        match event:
            case "reset", seed, observation:
                current, seen = Episode(), {ALONE: observation}
                episodes[seed] = current
            case "reset all", seed, observations:
                current, seen = Episode(), observations
                episodes[seed] = current
            case "reset turns", seed:
                current, seen = Episode(turns=[]), {}
                episodes[seed] = current
            case "step", action, observation, *rest:
                current.steps.append({ALONE: Row(seen[ALONE], action, *rest)})
                seen = {ALONE: observation}
            case "step all", actions, observations, rewards, ends:
                current.steps.append(
                    {one: Row(seen[one], action, rewards[one], *ends[one]) for one, action in actions.items()}
                )
                seen = observations
            case "last", player, observation, *rest:
                current.turns.append(Turn(len(current.steps), player, *rest))
                seen[player] = observation
            case "turn", player, action if action is not None:
                current.steps.append({player: Row(seen[player], action, 0.0, False, False)})
            case "raised", "step", text:
                current.raised = text
    return episodes


def recorded(table: pa.Table) -> dict[int, list[dict[str, Row]]]:
    """The rows of each episode, by seed, of those who took part."""
    import pyarrow as pa  # where it is needed alone

    seeds = table["seed"].to_pylist()
    if "observation" in table.column_names:
        players = {ALONE: _rows(table.select(NAMES).to_struct_array())}
    else:
        structs = [one.name for one in table.schema if pa.types.is_struct(one.type)]
        players = {name: _rows(table[name]) for name in structs}
    found: defaultdict[int, list[dict[str, Row]]] = defaultdict(list)
    for place, seed in enumerate(seeds):
        found[seed].append({name: row for name, rows in players.items() if (row := rows[place]) is not None})
    return dict(found)


def _rows(column: pa.ChunkedArray) -> list[Row | None]:
    import pyarrow as pa  # as above

    values = of_column(pa.field("", column.type), column.combine_chunks())
    return [None if value is None else Row(*(value[name] for name in NAMES)) for value in values]


def differences(made: Episode, kept: list[dict[str, Row]], *, max_steps: int) -> Iterator[str]:
    if len(made.steps) != len(kept):
        yield f"{len(kept)} steps on record, {len(made.steps)} played"
        return
    rows = made.steps
    if made.turns is not None:
        yield from _wrong_sums(made, kept)
        rows = _of_turns(made.turns, made.steps, kept)
    for step, (expected, found) in enumerate(zip(rows, kept, strict=True)):
        if expected.keys() != found.keys():
            yield f"step {step}: players {[*found]} on record, {[*expected]} took part"
            continue
        for player, row in expected.items():
            wanted = row._replace(truncated=True) if step + 1 == max_steps else row  # rule 2
            for name, one, other in zip(NAMES, wanted, found[player], strict=True):
                if type(one) is not type(other) or one != other:
                    yield f"step {step} {player} {name}: {other!r:.200} on record, {one!r:.200} returned"


def _of_turns(
    turns: list[Turn], steps: list[dict[str, Row]], kept: list[dict[str, Row]]
) -> list[dict[str, Row]]:
    """The rows that are to be on record, with its rewards, and of those who did not act with its players."""
    rows = [
        {player: acted.get(player, NOTHING)._replace(reward=row.reward) for player, row in found.items()}
        for acted, found in zip(steps, kept, strict=True)
    ]
    for acted, row in zip(steps, rows, strict=True):
        row |= {player: one for player, one in acted.items() if player not in row}
    for turn in turns:
        if (turn.terminated or turn.truncated) and turn.steps:
            row = rows[turn.steps - 1]
            row[turn.player] = row.get(turn.player, NOTHING)._replace(
                terminated=turn.terminated, truncated=turn.truncated
            )
    return rows


def _wrong_sums(made: Episode, kept: list[dict[str, Row]]) -> Iterator[str]:
    """Rule 1."""
    since: dict[str, int] = {}
    for turn in made.turns or ():
        rows = kept[since.get(turn.player, 0) : turn.steps]
        total = sum(row[turn.player].reward for row in rows if turn.player in row)
        if turn.steps and not isclose(total, turn.reward, rel_tol=1e-6, abs_tol=1e-6):
            yield f"step {turn.steps} {turn.player}: rewards of {total} on record, last() said {turn.reward}"
        since[turn.player] = turn.steps


def unseen(events: Iterable[tuple[Any, ...]], kept: dict[int, list[dict[str, Row]]]) -> Iterator[str]:
    """Where what agents saw and did is not what is on record; `kept` in the order in which the episodes were played."""
    told: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for _, player, observation, action in events:
        told[player].append((observation, action))
    found: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for rows in kept.values():
        for step in rows:
            for player, row in step.items():
                if row.action is not None:
                    found[player].append((row.observation, row.action))
    for player in found.keys() | told.keys():
        if told[player] != found[player]:
            yield f"agent of {player!r}: what it saw and did is not what is on record"

"""The table of what was played."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.environments.catalogue import Game
    from tests.environments.runs import Played

PACKAGES: Final = (
    *("gymnasium", "mujoco", "box2d", "minigrid", "ale-py", "pettingzoo", "open-spiel", "rlcard", "numpy"),
    *("stable-baselines3", "torch"),
)
HEAD: Final = """\
# Environments that were played

Environments of well-known packages, as they come from the package index: this page tells which of them play, and why
others do not. `tests/environments/play.py` writes it; `make test-all` plays some of each group again. How
environments are connected: [environments and agents](environments-and-agents.md).

Each game is played by each transport, in process and through conductors, by an agent that draws its actions from the
action space, of the allowed ones where there is an `action_mask`. Algorithms of Stable-Baselines3 learn meanwhile. Each
episode has a seed, and ends after so many steps at the latest.

A wrapper around the environment writes down what `reset`, `step` and `last` return, and the agent what it sees and
does. Both are compared with the steps on record, value by value, in dtype, shape and each part of a nested space: a
game *plays* if all its episodes ended as they should and all values are the same.
"""


@dataclass(slots=True, kw_only=True)
class Line:
    """A game by each transport. `refused`: what its package said, alone, when it was built."""

    game: Game
    played: list[Played] = field(default_factory=list)
    refused: str = ""

    @property
    def faults(self) -> list[str]:
        """Ours."""
        return (
            [] if self.refused else [f"{one.transport}: {text}" for one in self.played for text in one.faults]
        )

    @property
    def raised(self) -> str:
        """What the environment raised while it was played."""
        return next((one.raised for one in self.played if one.raised), "")

    @property
    def plays(self) -> bool:
        return not (self.refused or self.faults or self.raised)

    @property
    def result(self) -> str:
        if self.refused:
            return f"its package does not build it: {self.refused}"
        if self.faults:
            return f"**fault**: {self.faults[0]}"
        return f"fails by itself in some episodes: {self.raised}" if self.raised else "plays"


def table(lines: Iterable[Line]) -> str:
    """A row for each group, and one for each game of it that does not play."""
    groups: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.game.group].append(line)
    head = (
        "group",
        "ids",
        "play",
        "episodes of each",
        "steps of an episode",
        "in process",
        "through conductors",
    )
    rows = [head, *(_row(group, members) for group, members in groups.items())]
    return "\n".join(["| " + " | ".join(row) + " |" for row in (rows[0], ("---",) * len(head), *rows[1:])])


def _row(group: str, lines: Sequence[Line]) -> tuple[str, ...]:
    most = sorted({line.game.max_steps for line in lines})
    return (
        group,
        str(len(lines)),
        str(sum(line.plays for line in lines)),
        str(max((one.episodes for line in lines for one in line.played), default=0)),
        "at most " + " or ".join(map(str, most)),
        *(_told(lines, transport) for transport in ("in_process", "conductors")),
    )


def _told(lines: Sequence[Line], transport: str) -> str:
    played = [one for line in lines for one in line.played if one.transport == transport]
    return f"{sum(one.episodes for one in played):,} episodes, {sum(one.steps for one in played):,} steps"


def exceptions(lines: Iterable[Line]) -> str:
    """A line for each result, with its games, but for `plays`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        if not line.plays:
            found[line.result].append(line.game.name)
    return "\n".join(
        f"* {', '.join(f'`{name}`' for name in names)}: {result}" for result, names in found.items()
    )


def page(lines: Sequence[Line]) -> str:
    packages = ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name)))
    parts = [
        HEAD,
        f"Played at {datetime.now(tz=UTC):%Y-%m-%d} with {packages}.\n",
        table(lines) + "\n",
        "## What does not play\n",
        exceptions(lines) + "\n" if not all(line.plays for line in lines) else "Nothing.\n",
        "## What plays\n",
        *(f"**{group}**: {names}\n" for group, names in _names(lines).items()),
    ]
    return "\n".join(parts)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _names(lines: Iterable[Line]) -> dict[str, str]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        if line.plays:
            found[line.game.group].append(f"`{line.game.name}`")
    return {group: ", ".join(names) for group, names in found.items()}

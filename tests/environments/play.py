"""Plays the environments of the index: in process and through conductors, with the steps on record read back and compared.

    python tests/environments/play.py [WORD ...] [--every 1] [--episodes 20] [--page docs/environments-played.md]

WORD: play the games whose group or name begins with it. `--every 8`: of each group the first, the ninth, and so on. The packages (`requirements.txt`) must be importable here and in the
processes of the runs: set PYTHONPATH. Ends with 1 if a fault of ours was found.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this file is started by its path

from tests.environments import runs
from tests.environments.catalogue import OLDER, Game, games
from tests.environments.report import Line, exceptions, page, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.environments.runs import Played, Transport
AT_ONCE: Final[dict[Transport, int]] = {"in_process": 16, "conductors": 6}
"""Games of one run: through conductors each has two processes and more."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    chosen = list(_chosen(options))
    older = options.episodes if options.older is None else options.older
    begun = perf_counter()
    # for the user code of the runs
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [runs.ROOT, os.environ.get("PYTHONPATH")]))

    def episodes(game: Game) -> int:
        return older if game.group == OLDER else options.episodes

    with tempfile.TemporaryDirectory(prefix="play-") as folder:
        lines = play(chosen, Path(folder), episodes=episodes)
    print(f"{table(lines)}\n\n{exceptions(lines)}\n")
    print(
        f"{sum(line.plays for line in lines)} of {len(lines)} games play, in {perf_counter() - begun:.0f} s"
    )
    if options.page:
        options.page.write_text(page(lines))
    return int(any(line.faults for line in lines))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--every", type=int, default=1, help="play one of so many of each group (1)")
    parser.add_argument("--episodes", type=int, default=20, help="of each game by each transport (20)")
    parser.add_argument("--older", type=int, help="the same of the older names of Atari games")
    parser.add_argument("--page", type=Path, help="the document to write")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> Iterator[Game]:
    numbers: Counter[str] = Counter()
    for game in games():
        if _is_wanted(game, options.words):
            if numbers[game.group] % options.every == 0:
                yield game
            numbers[game.group] += 1


def _is_wanted(game: Game, words: Sequence[str]) -> bool:
    return not words or any(name.startswith(word) for word in words for name in (game.group, game.name))


def play(chosen: Sequence[Game], folder: Path, *, episodes: Callable[[Game], int]) -> list[Line]:
    """First in process: what its package refuses is not played again."""
    lines = [Line(game=game) for game in chosen]
    for transport in AT_ONCE:
        left = [line for line in lines if not line.refused]
        for line, played in zip(left, _play(left, transport, folder, episodes), strict=True):
            line.played.append(played)
            if played.faults and not played.episodes:
                line.refused = refusal(line.game)
    return lines


def _play(
    lines: Sequence[Line], transport: Transport, folder: Path, episodes: Callable[[Game], int]
) -> list[Played]:
    """By each line."""

    def play_some(place: int) -> list[Played]:
        some = [line.game for line in lines[place : place + size]]
        played = runs.play(some, transport, folder / f"{transport}{place}", episodes=episodes)
        print(
            f"{transport} {place + len(some)} of {len(lines)}: {some[-1].name}", file=sys.stderr, flush=True
        )
        return played

    size = AT_ONCE[transport]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return [one for some in pool.map(play_some, range(0, len(lines), size)) for one in some]
        except BaseException:  # Ctrl-C: what runs ends first
            pool.shutdown(cancel_futures=True)
            raise


def refusal(game: Game) -> str:
    """What the package says, without us; empty if it builds the environment."""
    try:
        environment = game.build()
        environment.reset(seed=1)
    except Exception as error:  # noqa: BLE001  # whatever the package raises
        text = " ".join(str(error).split())
        for folder in sys.path:
            text = text.replace(f"{folder}/", "")
        return f"{type(error).__name__}: {text}"
    return ""


if __name__ == "__main__":
    sys.exit(main())

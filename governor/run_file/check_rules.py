"""Checks the rules of a phase against each other: `until`, `evaluate`, `checkpoint`, and the number of episodes.

A part of `governor.run_file.check`: takes plain data, where that is sound; returns paths and messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from governor.episodes.rules.conditions import METRICS, is_metric
from governor.messages import Checkpoint
from governor.run_file.plain_data import is_count, items
from governor.units.sections import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from governor.units.sections import Path

_KEYS: Final = ("until", "evaluate", "checkpoint")


def faults(phase: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    """The faults of one phase; its shape is checked elsewhere."""
    simulate = phase.get("simulate")
    if simulate is None:
        for key in _KEYS:
            if phase.get(key):
                yield (*path, key), "has no meaning without 'simulate'"
    if not isinstance(simulate, dict):
        return
    episodes = simulate.get("episodes")
    yield from _names(simulate, (*path, "simulate"))
    for index, condition in enumerate(items(phase.get("until"))):
        if isinstance(condition, dict):
            yield from _metric(condition, (*path, "until", index), simulate)
            yield from _condition(condition, (*path, "until", index), episodes)
    evaluate, checkpoint = phase.get("evaluate"), phase.get("checkpoint")
    if isinstance(evaluate, dict):
        yield from _metric(evaluate, (*path, "evaluate"), simulate)
        yield from _evaluation(evaluate, (*path, "evaluate"), episodes, mode=phase.get("mode", "train"))
    if isinstance(checkpoint, dict):
        yield from _metric(checkpoint, (*path, "checkpoint"), simulate)
        yield from _checkpoint(checkpoint, (*path, "checkpoint"), episodes, evaluated=evaluate is not None)


def _names(simulate: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    """Of keys of `info` and of reports."""
    for section in ("info", "reports"):
        given = simulate.get(section)
        named = given.items() if isinstance(given, dict) else enumerate(items(given))
        first: set[str] = set()
        for step, value in named:
            name = step if isinstance(given, dict) else value
            if name in METRICS:
                yield (
                    (*path, section, step),
                    f"{name!r} is a metric of every episode already: give yours another name",
                )
            elif isinstance(name, str) and name in first:
                yield (*path, section, step), f"{name!r} stands twice"
            elif isinstance(name, str):
                first.add(name)


def _condition(condition: Mapping[str, Any], path: Path, episodes: object) -> Iterator[tuple[Path, str]]:
    window = condition.get("average_over", 1)
    if is_count(window) and is_count(episodes) and window > episodes:
        yield (
            (*path, "average_over"),
            f"can never be met: the phase has {episodes} episodes, the average needs {window}",
        )


def _evaluation(
    evaluate: Mapping[str, Any], path: Path, episodes: object, *, mode: object
) -> Iterator[tuple[Path, str]]:
    if mode == "eval":
        yield path, "has no meaning with mode: eval (if it is inherited, say 'evaluate: null')"
    every, needed = evaluate.get("every"), evaluate.get("consecutive", 1)
    if not is_count(every) or not is_count(episodes) or every < 1:
        return
    if every > episodes:
        yield (*path, "every"), f"never comes: the phase has only {episodes} episodes"
    elif is_count(needed) and needed > episodes // every:
        yield (
            (*path, "consecutive"),
            f"can never be met: there are {episodes // every} evaluations in {episodes} episodes",
        )


def _checkpoint(
    checkpoint: Mapping[str, Any], path: Path, episodes: object, *, evaluated: bool
) -> Iterator[tuple[Path, str]]:
    every = checkpoint.get("every")
    if every is None and not checkpoint.get("best") and not checkpoint.get("last"):
        yield path, "asks for nothing: say 'every', 'best: true' or 'last: true'"
    if is_count(every) and is_count(episodes) and every > episodes:
        yield (*path, "every"), f"never comes: the phase has only {episodes} episodes"
    if checkpoint.get("keep") is not None and every is None:
        yield (*path, "keep"), "has no meaning without 'every'"
    if checkpoint.get("best") is True and every is None and not evaluated:
        yield (*path, "best"), "nothing says which is the best: say 'evaluate', or 'every'"
    for key in ("metric", "direction"):
        if checkpoint.get(key, default := Checkpoint.model_fields[key].default) == default:
            continue
        if checkpoint.get("best") is not True:
            yield (*path, key), "has no meaning without 'best: true'"
        elif evaluated:
            yield (*path, key), "has no meaning with 'evaluate', whose metric counts"


def _metric(
    section: Mapping[str, Any], path: Path, simulate: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    metric, info = section.get("metric"), simulate.get("info", ())
    names = [name for name in (info if isinstance(info, dict) else items(info)) if isinstance(name, str)]
    reports = [name for name in items(simulate.get("reports")) if isinstance(name, str)]
    if not isinstance(metric, str) or info == "all" or is_metric(metric, info=names, reports=reports):
        return
    known = [*METRICS, *names, *reports]
    hint = (
        suggestion(metric, known)
        or "; a key of info must stand in simulate.info, a reported name in simulate.reports"
    )
    yield (
        (*path, "metric"),
        f"unknown metric {metric!r}; there are {', '.join(known)}, and return.PLAYER{hint}",
    )

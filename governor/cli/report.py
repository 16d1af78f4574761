"""`governor report RUN [RUN...]`: one HTML file of a run, or of several side by side.

The daemon is asked. Where none answers, or it has no such run (of `governor run`, for one), the run's journal is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli import ask, groups
from governor.cli.rendering import lines
from governor.errors import GovernorError, NoSuchRun, NotPermitted, Unreachable, UsageError
from governor.locations import default_state_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from governor.executor import Executor
    from governor.messages import RunResult
    from governor.report.document import Document, RunDocument
    from governor.report.source import JournalSource


MOST_RUNS = 40
"""Runs of a group in one page."""


@click.command("report", short_help="Write a page: curves, timeline, failures.")
@click.argument("uids", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write.  [default: report-NAME-RUN.html, here]",
)
@click.option(
    "--episode",
    "episodes",
    metavar="PHASE:N",
    multiple=True,
    help="Show the steps of this episode, too; may be given several times.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the journal in this state folder, without a daemon.",
)
@ask.json_option
@click.pass_obj
def command(
    broker: str | None,
    *,
    uids: tuple[str, ...],
    output: Path | None,
    episodes: tuple[str, ...],
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Write one HTML file of RUN: outcome, failures, curves, timeline, episodes, tasks. It needs no server and no network.

    With several runs, or a group of them, their curves lie over each other, and a table has their metrics with confidence intervals over seeds.
    """
    asked = _asked(episodes)
    document = asyncio.run(_collect(broker, uids, asked, state_dir))
    of_group = len(uids) == 1 and groups.is_group(uids[0])
    file = output or Path(f"report-{uids[0]}.html" if of_group else _name_of(document))
    size = write(document, file, through_links=True)
    for phase, number in _absent(document.runs, asked):
        lines.say(
            f"governor: --episode {phase}:{number} is not in the report: no steps of it are on record, or its phase is not over",
            err=True,
        )
    if as_json:
        click.echo(json.dumps({"file": str(file.absolute()), "bytes": size}))
    else:
        lines.say(f"Report: {file} ({size / 1024:,.0f} KiB)", err=str(file) == "/dev/stdout")


def write(document: Document, file: Path, *, through_links: bool = False) -> int:
    """Writes the page of the document, whole or not at all, in the place of a link or `through_links` to what it points to; returns its size
    in bytes. Raises UsageError where it can't be written.
    """
    from governor.files import write_whole  # noqa: PLC0415  # not for `--help`
    from governor.report.page import render  # noqa: PLC0415  # as above

    page = render(document).encode()
    try:
        if file.exists() and not file.is_file():  # /dev/stdout, for one, must not be replaced
            file.write_bytes(page)
        elif file.parent.is_dir():
            write_whole(Path(os.path.realpath(file)) if through_links else file, page)
        else:
            raise UsageError(f"the report can't be written to {file}: there is no folder {file.parent}")
    except OSError as error:
        raise UsageError(f"the report can't be written to {file}: {error.strerror}") from error
    return len(page)


async def write_for(executor: Executor, result: RunResult) -> Path:
    """Writes the report of a run that has ended into its folder. Raises GovernorError, OSError."""
    from governor.report.collect import RunCollector, document_of  # noqa: PLC0415  # only where a run has ended
    from governor.report.source import DaemonSource  # noqa: PLC0415  # as above

    run = await RunCollector(DaemonSource(executor), result).collect()
    file = Path(result.folder) / "report.html"
    await asyncio.to_thread(write, document_of([run]), file)
    return file


def _asked(episodes: Sequence[str]) -> dict[str, frozenset[int]]:
    """By phase. Raises UsageError."""
    found: dict[str, frozenset[int]] = {}
    for text in episodes:
        phase, _, number = text.rpartition(":")
        if not phase or not number.isdecimal():
            raise UsageError(f"--episode {text!r} is not PHASE:N, as in train:12")
        found[phase] = found.get(phase, frozenset()) | {int(number)}
    return found


async def _collect(
    broker: str | None,
    uids: Sequence[str],
    asked: Mapping[str, frozenset[int]],
    state_dir: Path | None,
) -> Document:
    from governor.executor import Executor  # noqa: PLC0415  # not for `--help`
    from governor.report.collect import collect_run, document_of  # noqa: PLC0415  # as above
    from governor.report.source import DaemonSource  # noqa: PLC0415  # as above

    runs: list[RunDocument] = []
    for uid in await _with_runs(broker, uids):
        if state_dir is not None:
            missing = NoSuchRun(uid, f"no run {uid!r} in {state_dir}")
            runs.append(await collect_run(_kept(state_dir, uid, missing), uid, asked=asked))
            continue
        try:
            async with Executor(broker) as executor:
                runs.append(await collect_run(DaemonSource(executor), uid, asked=asked))
        except (Unreachable, NotPermitted, NoSuchRun) as error:
            if ask.is_elsewhere(broker):
                raise
            runs.append(await collect_run(_kept(default_state_dir(), uid, error), uid, asked=asked))
    found = [run.summary.uid for run in runs]
    if twice := next((uid for uid in found if found.count(uid) > 1), None):
        raise UsageError(f"run {twice} is named twice")
    _require_phases(runs, asked)
    return document_of(runs)


async def _with_runs(broker: str | None, uids: Sequence[str]) -> list[str]:
    """The runs of a group in its place: those of its cells."""
    from governor.executor import Executor  # noqa: PLC0415  # not for `--help`

    found: list[str] = []
    for uid in uids:
        if not groups.is_group(uid):
            found.append(uid)
            continue
        async with Executor(broker) as executor:
            cells = (await executor.group(uid)).cells
        begun = [cell.uid for cell in cells if cell.state not in ("queued", "paused")]
        if len(begun) > MOST_RUNS:
            lines.say(
                f"governor: group {uid} has {len(begun)} runs, the report shows the first {MOST_RUNS}; "
                f"`governor results {uid}` has all",
                err=True,
            )
        found += begun[:MOST_RUNS]
    if not found:
        raise UsageError("none of these runs has begun: there is nothing to report yet")
    return found


def _require_phases(runs: Sequence[RunDocument], asked: Mapping[str, frozenset[int]]) -> None:
    known = dict.fromkeys(phase.name for run in runs for phase in run.summary.phases)
    for phase in asked:
        if phase not in known:
            raise UsageError(f"--episode: there is no phase {phase!r}: {', '.join(known) or 'none began'}")


def _absent(runs: Sequence[RunDocument], asked: Mapping[str, frozenset[int]]) -> list[tuple[str, int]]:
    """The episodes that were asked for, and that no run shows."""
    shown = {(each.phase, each.episode) for run in runs for each in run.steps}
    shown |= {(each.phase, each.episode) for run in runs for each in run.sessions}
    return [
        (phase, number) for phase in asked for number in sorted(asked[phase]) if (phase, number) not in shown
    ]


def _kept(state_dir: Path, uid: str, instead_of: GovernorError) -> JournalSource:
    """The journal of the run's state folder. Raises `instead_of` if no such run is there, NoSuchRun, NotPermitted."""
    from governor.report.source import JournalSource  # noqa: PLC0415  # not for `--help`

    try:
        return JournalSource(ask.kept_folder(state_dir, uid, instead_of=instead_of))
    except PermissionError as error:
        raise NotPermitted(f"{error.filename} can't be read: {error.strerror}") from None


def _name_of(document: Document) -> str:
    if len(document.runs) > 1:
        return f"report-{'-'.join(run.summary.uid for run in document.runs[:4])}.html"
    about = document.runs[0].summary
    name = re.sub(r"[^\w.-]+", "-", about.name).strip("-.")[:60] or "run"
    return f"report-{name}-{about.uid}.html"

"""A disk that is full for a while: what cannot be kept is failed, with its reason, and judged as such; the phase goes on."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from governor import files
from governor.episodes import learned
from governor.episodes.records import episode_file, state_file
from governor.messages import Done, EpisodeEnded, EpisodeRecord, Evaluate, PartEndedReport, Until
from tests.support.full_disk import full_beyond
from tests.support.in_process_commands import inside, outcomes
from tests.support.reasons import without_place

BOTH = pytest.mark.parametrize("transport", ["conductors", "in_process"])
FULL = "OSError: [Errno 27] File too large"
LARGE = 2_000_000


@pytest.fixture
def stage(harness):
    async def set_up(transport, **params):
        if transport == "in_process":
            return inside(**params)
        await harness.pair(**params)
        return {}

    return set_up


@pytest.fixture
def long_ago(harness):
    """An episode of an earlier life, whose line is as long as none: the file of lines is full before all others."""
    record = EpisodeRecord(
        index=0, worker=0, seed=0, outcome="failed", value=0.0, steps=0, seconds=0.1, reason="x" * LARGE
    )
    path = episode_file.path_of(Path(harness.folder / "run"), "train")
    with episode_file.EpisodeFile(path=path, phase="train", mode="train", reported=[]) as file:
        file.append(record)
    return record


@BOTH
async def test_episodes_whose_lines_do_not_fit_are_failed_and_the_phase_continues(
    harness, stage, long_ago, transport
):
    command = await stage(transport)
    with full_beyond(LARGE + 2000):
        records, end = await harness.play(episodes=200, done=(long_ago,), **command)
    assert [record.index for record in records] == list(range(1, 200))
    assert set(outcomes(records)) == {"terminated", "failed"}
    assert {record.reason for record in records} == {"", f"cannot write its line: {FULL}"}
    well = [record.index for record in records if record.outcome == "terminated"]
    assert [line["index"] for line in harness.lines()] == [0, *well]
    assert (end.end, end.failures) == ("max_episodes", 200 - len(well))
    assert harness.state()["learned"] == 199 * 5


@BOTH
async def test_an_agent_without_room_for_its_state_can_learn_again_from_the_streams(
    harness, stage, monkeypatch, transport
):
    write = files.write_whole

    def write_once(path, data, **more):
        if path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data, **more)

    for module in (learned, state_file):
        monkeypatch.setattr(module, "write_whole", write_once)
    _, end = await harness.play(episodes=9, **await stage(transport))
    assert end.first_failure.startswith("agent 'walker' cannot be saved: OSError: [Errno 28] No space left")
    assert sorted(path.name for path in (harness.folder / "run" / "episodes").iterdir()) == [
        "train.0.1.arrow",
        "train.jsonl",
    ]


@BOTH
async def test_their_lines_are_written_when_there_is_room_again(harness, stage, long_ago, transport):
    command = await stage(transport)
    controller = await harness.start("simulation")
    link = harness.links["simulation"]
    with full_beyond(LARGE + 2000):
        await controller.perform(harness.command(episodes=500, done=(long_ago,), **command))
        async with asyncio.timeout(20):
            while not any(isinstance(e, EpisodeEnded) and e.episode.reason for e in link.events):
                await link.next(EpisodeEnded, after=len(link.events))
    records, _ = await harness.end()
    assert [record.index for record in records] == list(range(1, 500))
    assert "failed" in outcomes(records)
    told = [(record.index, record.outcome) for record in records]
    assert [(line["index"], line["outcome"]) for line in harness.lines()][1:] == told


async def test_the_last_lines_are_there_when_the_end_is_told(harness, long_ago):
    controller = await harness.start("simulation")
    link = harness.links["simulation"]
    report, report_all = link.report, link.report_all
    found = []
    with contextlib.ExitStack() as full:

        async def make_room_and_report(events):
            if events[-1].episode.index == 3:
                full.close()
            return await report_all(events)

        async def read_and_report(event):
            if isinstance(event, PartEndedReport):
                found.extend((line["index"], line["outcome"]) for line in harness.lines())
            return await report(event)

        link.report, link.report_all = read_and_report, make_room_and_report
        full.enter_context(full_beyond(LARGE + 300))  # holds one more line at most
        await controller.perform(harness.command(episodes=4, done=(long_ago,), **inside()))
        records, _ = await harness.end()
    assert outcomes(records)[-1] == "failed"
    assert found[1:] == [(record.index, record.outcome) for record in records]


@BOTH
@pytest.mark.parametrize(
    "rule",
    [
        {"until": (Until(metric="return", at_least=1.0, average_over=3),)},
        {"evaluate": Evaluate(every=2, episodes=2, at_least=1.0)},
    ],
    ids=["until", "evaluate"],
)
async def test_an_episode_whose_steps_are_lost_ends_no_phase(harness, stage, transport, rule):
    command = await stage(transport, length=300)
    with full_beyond(15_000):  # holds one episode
        records, end = await harness.play(episodes=6, **rule, **command)
    assert (outcomes(records).count("terminated"), end.end) == (1, "max_episodes")
    assert "evaluations" not in end.metrics


@BOTH
async def test_the_phase_is_over_with_the_episode_that_says_so(harness, stage, transport):
    command = await stage(transport)
    records, end = await harness.play(
        episodes=300, until=(Until(metric="return", at_least=5.0, average_over=9),), **command
    )
    assert (end.end, outcomes(records)) == ("until", ["terminated"] * 9)


async def test_a_worker_that_exits_is_the_reason_for_the_end(harness, monkeypatch):
    def leave(*_):
        raise SystemExit(3)

    monkeypatch.setattr("governor.episodes.local.in_process.InProcess.play", leave)
    controller = await harness.start("simulation")
    assert await controller.perform(harness.command(**inside())) == Done()
    _, end = await harness.end()
    assert (end.end, without_place(end.first_failure)) == ("stopped", "worker 0: SystemExit: 3")

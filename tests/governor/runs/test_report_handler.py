"""Reports of conductors: applied once, in order, acknowledged when durable."""

from __future__ import annotations

import asyncio
import sqlite3
from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import capture_logs

from governor.episodes.rules.statistics import PhaseStatistics
from governor.errors import FilesRemoved, JournalError, NoRoom
from governor.journal import disk_reserve
from governor.journal.disk_reserve import Reserve
from governor.journal.journal import Journal
from governor.journal.tables import Transaction
from governor.messages import (
    Acknowledged,
    EpisodeEnded,
    EpisodeRecord,
    FailedReport,
    FiguresUpdated,
    Log,
    PartEndedReport,
    PartFinalizing,
    ReadyReport,
    Refused,
    Report,
    TaskStarted,
    decode_acknowledged,
    encode,
)
from governor.run_file.model import LimitsSection
from governor.runs.limits import RunLimits
from governor.runs.record.result import figures_of
from states import events
from tests.support.reporting_run import ASSIGNMENT, RUN, SECRET, ReportingRun
from transport.access import Secret


@pytest.fixture
async def run(tmp_path):
    journal = Journal(tmp_path / "governor.db")
    await journal.write(lambda tx: tx.submit(uid="r1", key=None, name="r", spec=RUN.raw(), folder="/"))
    made = ReportingRun(journal)
    made.progress.enter_phase(0)
    yield made
    await journal.close()


async def report_as_latest(run, seq, *sent, conductor="simulation", incarnation=1):
    """Reports as that incarnation, after it was started."""
    run.handler.open(conductor, incarnation)
    return await report_as(run, seq, *sent, conductor=conductor, incarnation=incarnation)


async def report_as(run, seq, *sent, conductor="simulation", incarnation=1):
    report = Report(conductor=conductor, incarnation=incarnation, seq=seq, events=sent)
    [answer] = await run.handler.answer(SimpleNamespace(body=[encode(report), SECRET.value]))
    return decode_acknowledged(answer)


def ended(index, value=1.0):
    record = EpisodeRecord(
        index=index, worker=0, seed=1, outcome="terminated", value=value, steps=3, seconds=0.1
    )
    return EpisodeEnded(phase=0, episode=record)


async def test_episodes_of_an_evaluation_are_recorded_and_not_counted(run):
    of_evaluation = msgspec.structs.replace(ended(9, value=8.0).episode, evaluation=1)
    await report_as_latest(run, 1, ended(0), EpisodeEnded(phase=0, episode=of_evaluation))
    assert [*run.journal.episodes("r1", 0)][1] == of_evaluation
    for _ in range(2):
        assert (run.progress.episodes_ended, run.progress.metrics) == (1, {"return_mean": 1.0})
        run.progress.enter_phase(0)
        run.progress.enter_simulation(figures_of(run.journal, ASSIGNMENT, 0))


def limited(run, done=(), **limits):
    """The run of a run with limits, an earlier invocation of which has `done` some."""
    run.limits = RunLimits(LimitsSection(**limits))
    run.limits.count(done)


@pytest.mark.parametrize(
    ("limits", "exceeded"),
    [
        ({"episodes": 2}, ("episodes", 2, 3)),
        ({"steps": 6}, ("steps", 6, 9)),
        ({"steps": 9, "episodes": 2}, ("episodes", 2, 3)),
    ],
)
async def test_a_limit_stops_the_run_before_the_episode_beyond_it_is_acknowledged(run, limits, exceeded):
    limited(run, **limits)
    await report_as_latest(run, 1, ended(0), ended(1))
    assert run.governor.taken == []
    await report_as_latest(run, 3, ended(2))
    forwarded = [(event, on_record) for event, _, on_record in run.governor.taken]
    limit, value, reached = exceeded
    sent = events.LimitExceeded(run="r1", at=5.0, limit=limit, value=value, reached=reached)
    assert forwarded == [(sent, 3)]
    await report_as_latest(run, 4, ended(3))
    assert len(run.governor.taken) == 1, "said once"


async def test_episodes_of_an_earlier_invocation_count_and_a_second_report_does_not(run):
    limited(run, done=[ended(7), ended(8)], episodes=3)
    await report_as_latest(run, 1, ended(0))
    await report_as_latest(run, 1, ended(0), incarnation=2)
    assert run.governor.taken == []
    await report_as_latest(run, 2, ended(1), incarnation=2)
    assert [event.kind for event, _, _ in run.governor.taken] == ["limit.exceeded"]


END = PartEndedReport(phase=0, part="simulation", end="until", metrics={"return_mean": 1.0})


async def test_records_are_durable_before_what_follows_them_moves_the_run(run):
    assert await report_as_latest(run, 1, ended(0), ended(1), END) == Acknowledged(flow="CONTINUE")
    [(forwarded, detail, on_record)] = run.governor.taken
    assert forwarded == events.PartEnded(run="r1", at=5.0, phase=0, part="simulation", end="until")
    assert (detail, on_record) == ({"metrics": {"return_mean": 1.0}}, 2)
    assert [event.kind for event in run.journal.events("r1")] == [
        "run.accepted",
        "episode.ended",
        "episode.ended",
    ]


async def test_what_is_sent_again_is_acknowledged_again_and_applied_once(run):
    await report_as_latest(run, 1, ended(0), ReadyReport())
    await report_as_latest(run, 1, ended(0), ReadyReport())
    await report_as_latest(run, 2, ReadyReport(), ended(1))
    assert len(run.governor.taken) == 1
    assert [record.index for record in run.journal.episodes("r1", 0)] == [0, 1]
    assert (run.progress.episodes_ended, len(run.journal.events("r1"))) == (2, 3)


async def test_a_later_incarnation_counts_its_own_and_an_episode_stays_as_first_reported(run):
    await report_as_latest(run, 1, ended(0, value=1.0))
    await report_as_latest(run, 1, ended(0, value=7.0), ended(1), incarnation=2)
    assert [record.value for record in run.journal.episodes("r1", 0)] == [1.0, 1.0]
    assert run.progress.episodes_ended == 2


async def test_figures_are_kept_with_what_was_reported_before_them(run):
    statistics = PhaseStatistics(ASSIGNMENT.simulation(0))
    for index in range(3):
        statistics.add(ended(index).episode)
    kept = FiguresUpdated(phase=0, figures=encode(statistics.figures))
    await report_as_latest(run, 1, *map(ended, range(3)), kept, ended(3, value=5.0))
    figures, after = run.journal.figures("r1", 0)
    assert figures == statistics.figures
    assert [record.index for record in run.journal.episodes("r1", 0, after=after)] == [3]
    statistics.add(ended(3, value=5.0).episode)
    assert figures_of(run.journal, ASSIGNMENT, 0) == statistics.figures
    assert len(run.journal.events("r1")) == 5, "they are no event of the run"


async def test_figures_that_the_journal_does_not_take_are_its_failure(run, monkeypatch):
    def refuse(*_):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Transaction, "figures", refuse)
    with pytest.raises(JournalError):
        await report_as_latest(run, 1, ended(0), FiguresUpdated(phase=0, figures=b""))
    assert len(run.governor.failures) == 1


async def test_how_far_the_file_of_the_steps_is_is_on_record_and_shown_until_the_part_ends(run):
    finalizing = PartFinalizing(phase=0, part="simulation", steps=4096, total=10**8)
    await report_as_latest(run, 1, finalizing)
    assert run.progress.at_work == "the file of its steps: 4,096 of 100,000,000 steps are in it"
    assert run.progress.changes == 1, "the phase alone: the same report comes again if nothing moves"
    (event,) = run.journal.events_of("r1", ("part.finalizing",))
    assert event.data == {"phase": 0, "part": "simulation", "steps": 4096, "total": 10**8}
    await report_as(run, 2, PartEndedReport(phase=0, part="simulation", end="max_episodes"))
    assert run.progress.at_work == ""


async def test_the_answer_carries_the_governors_flow_control(run):
    run.governor.flow = "SHUTDOWN"
    assert (await report_as_latest(run, 1, ended(0))).flow == "SHUTDOWN"


def fill(journal, pages=None):
    """No page can be added to the file, or there are so many at most."""
    (there,) = journal._writing.execute("PRAGMA page_count").fetchone()
    journal._writing.execute(f"PRAGMA max_page_count={pages or there}")


async def test_without_room_on_the_disk_nothing_is_acknowledged_and_the_record_has_no_hole(run):
    await report_as_latest(run, 1, ended(0))
    fill(run.journal)
    many = [ended(index) for index in range(1, 400)]
    with pytest.raises(JournalError, match="full"):
        await report_as_latest(run, 2, *many)
    fill(run.journal, pages=100_000)
    with pytest.raises(JournalError, match="nothing more of it"):
        await report_as_latest(run, 401, ended(400), conductor="tasks")
    assert len(run.governor.failures) == 2
    assert [episode.index for episode in run.journal.episodes("r1", 0)] == [0]


async def test_what_fails_while_the_disk_is_full_is_not_on_record_and_what_is_good_is(
    run, tmp_path, monkeypatch
):
    used = []
    run.journal._reserve = reserve = Reserve(tmp_path, size=1 << 16, on_used=used.append)
    reserve.take()
    bad = msgspec.structs.replace(
        ended(2), episode=msgspec.structs.replace(ended(2).episode, outcome="failed", reason="no space")
    )
    await report_as_latest(run, 1, ended(0), msgspec.structs.replace(bad, phase=1))
    assert used == [], "there is room: it has failed"
    left = disk_reserve.shutil.disk_usage(tmp_path)._replace(free=0)
    with monkeypatch.context() as full:
        full.setattr(disk_reserve.shutil, "disk_usage", lambda _: left)
        with pytest.raises(NoRoom):
            await report_as_latest(run, 3, ended(1), bad, END)
    assert len(used) == 1
    for sent in (bad, msgspec.structs.replace(END, failures=1), FailedReport(reason="no space")):
        with pytest.raises(NoRoom, match="is repeated after the next start"):
            await report_as_latest(run, 4, sent)
    assert [episode.index for episode in run.journal.episodes("r1", 0)] == [0, 1]
    assert run.governor.taken == []
    await report_as_latest(run, 1, ended(3), conductor="other")
    assert [episode.index for episode in run.journal.episodes("r1", 0)] == [0, 1, 3]


def begun(task):
    return TaskStarted(phase=0, task=task, run=0, attempt=1, pid=7, node="n")


async def test_what_stood_before_the_write_that_failed_is_not_applied_again(run):
    fill(run.journal)
    sent = [begun("a"), END, begun("b"), ReadyReport(), *(ended(index) for index in range(400))]
    with pytest.raises(JournalError):
        await report_as_latest(run, 1, *sent)
    fill(run.journal, pages=100_000)
    with pytest.raises(JournalError):
        await report_as_latest(run, 1, *sent)
    assert [type(forwarded) for forwarded, _, _ in run.governor.taken] == [
        events.PartEnded,
        events.ConductorReady,
    ]
    started = [e.data["task"] for e in run.journal.events("r1") if e.kind == "task.started"]
    assert started == ["a", "b"]


async def test_lines_stand_in_the_log_with_their_level(run):
    levels = ("debug", "info", "warning", "error")
    with capture_logs() as lines:
        await report_as_latest(
            run, 1, *(Log(level=level, event="task.log", data={"text": level}) for level in levels)
        )
    assert [(line["log_level"], line["text"]) for line in lines] == [(level, level) for level in levels]
    assert {line["conductor"] for line in lines} == {"simulation"}


async def test_an_incarnation_that_was_never_started_or_is_dead_is_refused_and_logged(run):
    strangers = [("nobody", 9), ("simulation", 2), ("simulation", 0)]
    run.handler.open("simulation", 1)
    for conductor, incarnation in strangers:
        with capture_logs() as lines:
            answer = await report_as(run, 1, ended(0), conductor=conductor, incarnation=incarnation)
        assert (answer.code, answer.exit_code) == ("fenced", 75)
        [line] = lines
        assert (line["event"], line["conductor"], line["incarnation"]) == (
            "report.fenced",
            conductor,
            incarnation,
        )
    assert isinstance(await report_as(run, 1, ended(0)), Acknowledged)
    await run.handler.close("simulation", 1)
    assert isinstance(await report_as(run, 2, ended(1)), Refused)
    run.handler.open("simulation", 2)
    assert isinstance(await report_as(run, 2, ended(1)), Refused), "its successor opens no way for it"
    assert isinstance(await report_as(run, 1, ended(2), incarnation=2), Acknowledged)
    assert [record.index for record in run.journal.episodes("r1", 0)] == [0, 2]


async def test_a_report_that_is_being_applied_is_finished_before_its_conductor_is_shut_out(run):
    """The order of an exit: the governor is informed when `close` returns, and must be able to answer the report
    before that.
    """
    taking, may_take = asyncio.Event(), asyncio.Event()

    async def handle(event, *, detail=None):
        taking.set()
        await may_take.wait()

    run.governor.handle = handle
    run.handler.open("simulation", 1)
    first = asyncio.create_task(report_as(run, 1, ended(0), ReadyReport(), ended(1)))
    await taking.wait()
    second = asyncio.create_task(report_as(run, 4, ended(2)))
    closed = asyncio.create_task(run.handler.close("simulation", 1))
    late = asyncio.create_task(report_as(run, 5, ended(3)))
    assert isinstance(await report_as_latest(run, 1, ended(7), conductor="tasks"), Acknowledged), (
        "no business of others"
    )
    assert not closed.done()
    may_take.set()
    await closed
    assert first.done()
    assert second.done()
    assert {record.index for record in run.journal.episodes("r1", 0)} == {0, 1, 2, 7}
    assert isinstance(await late, Refused)


async def test_what_is_no_report_is_refused(run):
    [answer] = await run.handler.answer(SimpleNamespace(body=[b"\xff\x00", SECRET.value]))
    assert isinstance(decode_acknowledged(answer), Refused)
    assert run.governor.taken == []


@pytest.mark.parametrize(
    "shown", [(), (b"",), (Secret.new().value,), (SECRET.value[:-1],), (SECRET.value, b"more")]
)
async def test_a_report_without_the_secret_of_its_run_is_not_read_and_a_flood_of_them_makes_few_lines(
    run, shown
):
    run.handler.open("simulation", 1)
    report = Report(conductor="simulation", incarnation=1, seq=1, events=(ended(0, 1e9), ReadyReport()))
    with capture_logs() as logged:
        for _ in range(1000):
            for body in (encode(report), b"\xff"):
                [answer] = await run.handler.answer(SimpleNamespace(body=[body, *shown]))
                sent = decode_acknowledged(answer)
                assert (sent.code, sent.exit_code) == ("not_permitted", 77)
    assert [line["event"] for line in logged] == ["message.not_permitted"] * 11
    assert logged[-1] == {
        "event": "message.not_permitted",
        "log_level": "warning",
        "run": "r1",
        "refused": 1024,
    }
    assert (run.governor.taken, [*run.journal.episodes("r1", 0)]) == ([], [])
    assert isinstance(await report_as(run, 1, ended(0)), Acknowledged), "the numbers of its own are free"
    assert [record.value for record in run.journal.episodes("r1", 0)] == [1.0]


async def test_what_fails_for_want_of_removed_files_is_not_recorded(run):
    run.missing = FilesRemoved("the folder /s/runs/r1 was removed")
    run.handler.open("simulation", 1)
    bad = EpisodeEnded(phase=0, episode=msgspec.structs.replace(ended(1).episode, outcome="crashed"))
    with pytest.raises(FilesRemoved, match="the folder /s/runs/r1 was removed"):
        await report_as(run, 1, ended(0), bad, ended(2))
    assert [record.index for record in run.journal.episodes("r1", 0)] == [0]
    run.missing = None
    assert isinstance(await report_as(run, 1, ended(0), bad, ended(2)), Acknowledged), (
        "sent again, and of its own fault"
    )
    assert [record.index for record in run.journal.episodes("r1", 0)] == [0, 1, 2]

"""What a run takes over from the one that it resumes: finished work, where it continues, files, and the state after a
crash.
"""

from __future__ import annotations

import msgspec
import pytest

from governor.daemon import recovery
from governor.run_file.load import parse
from governor.runs.assignment import Assignment, Waiting
from governor.runs.record.failures import page
from governor.runs.record.result import build_result
from governor.runs.record.resume import find_kept_work
from tests.support.resumed_runs import ALL_TASKS, FOUR, UNTIL, episode, found, record, resumed, run_of, task

DIGEST = "0123456789abcdef"


async def test_what_succeeded_is_kept_and_the_run_continues_at_the_first_phase_with_something_missing(
    journal, old
):
    run = run_of("t", "t", "t")
    some = [task("once"), task("thrice", 0), task("thrice", 1, "timed_out"), task("thrice", 2, "cancelled")]
    await record(journal, run, {0: (ALL_TASKS, "", "tasks_done"), 1: (some, "", "failed")})
    kept = found(journal, run, old)
    assert (kept.first_phase, kept.is_complete) == (1, False)
    assert [phase.tasks for phase in kept.phases] == [4, 2, 0]
    assert [[kind for kind, _ in phase.events] for phase in kept.phases] == [
        ["phase.started", "part.ended", "phase.ended"],
        [],
        [],
    ]


@pytest.mark.parametrize(("evaluated", "whole"), [(6, True), (5, False)])
async def test_a_phase_is_whole_with_its_evaluations(journal, old, evaluated, whole):
    raw = run_of("s", "s").raw()
    raw["phases"][0]["evaluate"] = {"every": 2, "episodes": 3}
    run = parse(raw)
    records = [episode(index) for index in range(4)]
    records += [episode(index, evaluation=1 + index // 7) for index in range(4, 4 + evaluated)]
    await record(journal, run, {0: (records, "max_episodes", "max_episodes")})
    kept = found(journal, run, old)
    assert [phase.is_whole for phase in kept.phases] == [whole, False]


async def test_failures_that_the_run_was_allowed_are_missing_all_the_same(journal, old):
    run = run_of("t", "t", on_failure="continue")
    broken = [*ALL_TASKS[1:], task("once", outcome="failed")]
    await record(journal, run, {0: (broken, "", "tasks_done"), 1: (ALL_TASKS, "", "tasks_done")})
    kept = found(journal, run, old)
    assert (kept.first_phase, kept.is_complete) == (0, False)
    assert [phase.tasks for phase in kept.phases] == [3, 4]


ENOUGH = [task("once"), task("thrice", 0), task("thrice", 1), task("thrice", 2, "cancelled")]


@pytest.mark.parametrize(
    ("tasks", "end", "policy", "whole"),
    [
        (ENOUGH, "enough", "fail", True),
        (ENOUGH, "tasks_done", "fail", False),
        ([*ENOUGH[:2], task("thrice", 1, "failed"), ENOUGH[3]], "enough", "continue", True),
        ([*ENOUGH[:2], task("thrice", 1, "failed"), ENOUGH[3]], "enough", "fail", False),
        ([*ENOUGH[:2], task("thrice", 1, value_file="results/gone"), ENOUGH[3]], "enough", "fail", False),
    ],
)
async def test_what_was_cancelled_because_enough_had_succeeded_is_not_missing(  # noqa: PLR0917  # a table of cases
    journal, old, tasks, end, policy, whole
):
    run = run_of("t", "t", on_failure=policy)
    await record(journal, run, {0: (tasks, "", end)})
    [first, _] = found(journal, run, old).phases
    assert first.is_whole == whole
    kept = tasks if whole else [one for one in tasks if one.outcome == "succeeded" and not one.value_file]
    assert first.tasks == len(kept)
    assert [*(await resumed(journal, run, old)).tasks("new", 0)] == kept


async def test_a_run_that_never_began_has_everything_missing(journal, old):
    run = run_of("st", "t")
    await record(journal, run, {})
    old.rmdir()
    kept = found(journal, run, old)
    assert (kept.first_phase, kept.is_complete) == (0, False)


@pytest.mark.parametrize(
    ("episodes", "ends", "policy", "whole", "kept"),
    [
        (FOUR, ("max_episodes", "max_episodes"), "fail", True, [0, 1, 2, 3]),
        (UNTIL, ("until", "until"), "fail", True, [0, 1, 2]),
        (UNTIL, ("stopped", "aborted"), "fail", False, [0, 1]),
        (UNTIL, ("", ""), "fail", False, [0, 1]),
        (FOUR, ("max_episodes", ""), "fail", False, [0, 1, 2, 3]),
        ([*FOUR[:3], episode(3, "crashed")], ("max_episodes", "max_episodes"), "fail", False, [0, 1, 2]),
        (
            [*FOUR[:3], episode(3, "timed_out")],
            ("max_episodes", "max_episodes"),
            "continue",
            False,
            [0, 1, 2],
        ),
        ([*UNTIL, episode(3, "failed")], ("until", "until"), "continue", True, [0, 1, 2, 3]),
        ([*UNTIL, episode(3, "failed")], ("until", "until"), "fail", False, [0, 1]),
    ],
)
async def test_a_simulation_is_whole_or_keeps_the_episodes_that_ended_by_themselves(  # noqa: PLR0917  # a table of cases
    journal, old, episodes, ends, policy, whole, kept
):
    run = run_of("s", "t", on_failure=policy)
    await record(journal, run, {0: (episodes, *ends)})
    [first, _] = found(journal, run, old).phases
    assert first.is_whole == whole
    figures, after = (await resumed(journal, run, old)).figures("new", 0)
    assert figures == first.episodes
    assert ([*figures.ended], figures.steps, after) == (kept, 3 * len(kept), 0)
    assert [*journal.episodes("new", 0)] == [], "no record is copied"


BORNE = [
    *UNTIL,
    episode(3, "failed", reason="agent.act: KeyError: 3", traceback=DIGEST),
    task("thrice", 1, "timed_out", error="too long"),
]


async def test_failures_of_whole_phases_stay_on_record_also_when_a_resumed_run_is_resumed(journal, old):
    run = run_of("st", "st", on_failure="continue")
    await record(journal, run, {0: (BORNE, "until", "enough"), 1: (BORNE, "", "failed")})

    def attempt(tx):
        data = {"phase": 0, "index": 1, "attempt": 1, "outcome": "crashed", "reason": "gone"}
        tx.event("old", "episode.attempt_ended", data)
        tx.traceback("old", DIGEST, "Traceback\nKeyError", first=True)

    await journal.write(attempt)
    before = page(journal, "old", phase="p0", after=0, limit=9)
    assert [failure.what for failure in before.failures] == [
        "episode 3",
        "task thrice[1]",
        "attempt 1 at episode 1",
    ]
    await resumed(journal, run, old)
    await resumed(journal, run, old, parent="new", uid="newest")
    for uid in ("new", "newest"):
        journal.require_sound(uid, phases=2)
        assert [event.seq for event in journal.events(uid)] == [*range(1, journal.last_event(uid) + 1)]
        found = page(journal, uid, phase=None, after=0, limit=9)
        numbered = zip(found.failures, before.failures, strict=True)
        assert all(one == msgspec.structs.replace(other, event=one.event) for one, other in numbered)
        assert found.tracebacks == before.tracebacks == {DIGEST: "Traceback\nKeyError"}
        causes = journal.causes(uid, 0)
        assert [cause.event for cause in causes] == [failure.event for failure in found.failures]
        assert [cause[:2] for cause in causes] == [cause[:2] for cause in journal.causes("old", 0)]
        assert journal.causes(uid, 1) == [], "they are done again"
    await journal.write(lambda tx: tx.restarted("new"))
    assert page(journal, "new", phase=None, after=0, limit=9).failures == ()


async def test_what_is_not_exact_of_kept_episodes_stays_so_also_when_a_resumed_run_is_resumed(journal, old):
    run = run_of("s", "s", "s")
    await record(journal, run, {0: (FOUR, "max_episodes", "max_episodes"), 1: (UNTIL, "", "failed")})

    def restored(tx):
        for phase, reason in ((0, "it has no state"), (1, ""), (2, "it has no episode")):
            tx.event("old", "agent.restored", {"phase": phase, "agent": "a", "reason": reason})

    await journal.write(restored)
    await resumed(journal, run, old)
    await resumed(journal, run, old, parent="new", uid="newest")
    for uid in ("new", "newest"):
        await journal.write(lambda tx, uid=uid: tx.event(uid, "phase.started", {"phase": "p1", "index": 1}))
        assignment = Assignment.of(journal.run(uid), Waiting(uid=uid))
        built = build_result(journal=journal, assignment=assignment, outcome="failed", reason="", folder=old)
        exact = [(phase.exact, phase.not_exact) for phase in built.phases]
        assert exact == [(False, "agent a: it has no state"), (True, "")]


async def test_a_resumed_run_knows_that_phases_that_it_does_not_enter_had_failures(journal, old):
    run = run_of("s", "s", "s", on_failure="continue")
    phases = dict.fromkeys((0, 2), ([*UNTIL, episode(3, "failed")], "until", "until"))
    await record(journal, run, {**phases, 1: (UNTIL, "", "failed")})
    ended = {
        "phase": 0,
        "part": "simulation",
        "end": "until",
        "failures": 1,
        "first_failure": "episode 3: bad",
    }
    await journal.write(lambda tx: tx.events("old", "part.ended", [ended, {**ended, "phase": 2}]))
    assert found(journal, run, old).failed_phases == (1, "phase p0: 1 ended badly, first episode 3: bad")


async def test_a_run_whose_phases_are_all_whole_ends_from_the_record(journal, old):
    run = run_of("s", "t")
    phases = {0: (FOUR, "max_episodes", "max_episodes"), 1: (ALL_TASKS, "", "tasks_done")}
    await record(journal, run, phases)
    kept = found(journal, run, old)
    assert (kept.is_complete, kept.first_phase) == (True, 1)


async def test_once_recorded_it_is_a_run_that_recovery_continues(journal, old):
    run = run_of("s", "t")
    await record(
        journal,
        run,
        {0: (UNTIL, "until", "until"), 1: ([task("once"), task("thrice", 0, "failed")], "", "failed")},
    )
    kept = found(journal, run, old)
    await resumed(journal, run, old)
    assert journal.run("new").parent == "old"
    assert [*journal.figures("new", 0)[0].ended] == [0, 1, 2]
    journal.require_sound("new", phases=2)
    assert [record.task for record in journal.tasks("new", 1)] == ["once"]
    events = journal.events("new")
    assert [event.kind for event in events] == [
        "run.accepted",
        "run.inherited",
        "phase.started",
        "part.ended",
        "part.ended",
        "phase.ended",
    ]
    assert events[1].data == {
        "parent": "old",
        "kept": [
            {"phase": 0, "episodes": 3, "evaluated": 0, "steps": 9, "tasks": 0},
            {"phase": 1, "episodes": 0, "evaluated": 0, "steps": 0, "tasks": 1},
        ],
    }
    assert recovery._first_unfinished_phase(journal.events("new"), phases=2) == kept.first_phase == 1


async def test_a_run_that_resumes_a_resumed_one_has_the_episodes_of_both(journal, old):
    run = run_of("s", "t")
    broken = [episode(0), episode(1, "crashed"), episode(2)]
    await record(journal, run, {0: (broken, "max_episodes", "failed")})
    await resumed(journal, run, old)
    await journal.write(lambda tx: tx.episodes("new", 0, [episode(1, "timed_out"), episode(3)]))
    journal.require_sound("new", phases=2)
    kept = find_kept_work(journal, journal.run("new"), run, old).phases[0].episodes
    assert ([*kept.ended], kept.outcomes, kept.bad) == ([0, 2, 3], {"terminated": 3}, 0)


async def test_what_a_whole_phase_has_cancelled_is_missing_once_the_phase_is_no_longer_whole(journal, old):
    run = run_of("t", "st", on_failure="continue")
    stored = [*ALL_TASKS[:3], task("thrice", 2, value_file="results/p1/thrice-2.json")]
    (old / "results" / "p1").mkdir(parents=True)
    (old / "results" / "p1" / "thrice-2.json").write_text("[]")
    await record(journal, run, {0: ([], "", ""), 1: ([*UNTIL, *stored], "until", "until")})
    await resumed(journal, run, old)
    assert [*journal.figures("new", 1)[0].ended] == [0, 1, 2], "whole"
    (old / "results" / "p1" / "thrice-2.json").unlink()
    for uid in ("old", "new"):
        phase = find_kept_work(journal, journal.run(uid), run, old).phases[1]
        assert (phase.is_whole, [*phase.episodes.ended]) == (False, [0, 1])


async def test_of_a_whole_phase_behind_a_broken_one_the_records_are_kept_and_its_end_is_recorded_again(
    journal, old
):
    run = run_of("t", "t", on_failure="continue")
    await record(journal, run, {0: (ALL_TASKS[1:], "", "tasks_done"), 1: (ALL_TASKS, "", "tasks_done")})
    await resumed(journal, run, old)
    assert [event.kind for event in journal.events("new")] == ["run.accepted", "run.inherited"]
    assert [journal.tasks_ended("new", phase) for phase in (0, 1)] == [3, 4]

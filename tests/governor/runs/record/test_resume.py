"""What a run takes over from the one that it resumes: finished work, where it continues, files, and the state after a
crash.
"""

from __future__ import annotations

import json
import socket

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from governor.daemon import recovery
from governor.episodes.records.episode_file import EpisodeFile, folder_of, parquet_of, path_of
from governor.errors import UsageError
from governor.index_ranges import IndexRanges
from governor.messages import EpisodeRecord, TaskRecord
from governor.run_file.load import parse
from governor.runs.assignment import Assignment, Waiting
from governor.runs.record.failures import page
from governor.runs.record.result import build_result
from governor.runs.record.resume import KeptWork, find_kept_work, stage
from governor.runs.record.staging import discard, finish_interrupted, publish, staging_of

DIGEST = "0123456789abcdef"
SIMULATE = {"environment": "e", "agents": ["a"], "episodes": 4}


def run_of(*phases, until=(), on_failure="fail"):
    """Phases named by what they hold: "s" a simulation, "t" a task `once` and a task `thrice`, "st" both."""
    made = []
    for number, holds in enumerate(phases):
        phase = {"name": f"p{number}", "on_failure": on_failure}
        if "s" in holds:
            phase |= {"simulate": SIMULATE, "until": list(until)}
        if "t" in holds:
            phase["tasks"] = [{"id": "once", "call": "m:f"}, {"id": "thrice", "call": "m:f", "repeat": 3}]
        made.append(phase)
    conductors = {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}}
    uses = any("s" in holds for holds in phases)
    return parse({"name": "r", "phases": made, **({"conductors": conductors} if uses else {})})


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    return folder


def episode(index, outcome="terminated", **more):
    return EpisodeRecord(
        index=index, worker=0, seed=1, outcome=outcome, value=1.0, steps=3, seconds=0.1, **more
    )


def task(name, run=0, outcome="succeeded", **more):
    return TaskRecord(task=name, run=run, outcome=outcome, attempts=1, seconds=0.1, **more)


ALL_TASKS = [task("once"), *(task("thrice", run) for run in range(3))]


async def record(journal, run, phases):
    """A run `old` whose phases had these records and ends: `{index: (records, end of simulation, end of phase)}`; an end
    of a phase is that of its tasks too.
    """

    def change(tx):
        tx.submit(uid="old", key=None, name="r", spec=run.raw(), folder="/")
        for index, (records, simulation, end) in phases.items():
            tx.event("old", "phase.started", {"phase": f"p{index}", "index": index, "episodes": 4})
            for one in records:
                (tx.episodes if isinstance(one, EpisodeRecord) else tx.tasks)("old", index, [one])
            if simulation:
                ended = {"phase": index, "part": "simulation", "end": simulation, "metrics": {"m": 1.0}}
                tx.event("old", "part.ended", ended)
            if end:
                tx.event("old", "part.ended", {"phase": index, "part": "tasks", "end": end, "metrics": {}})
                tx.event("old", "phase.ended", {"phase": f"p{index}", "index": index, "end": end})

    await journal.write(change)


def with_files(run, old):
    """The folder, with the files of phases that have simulations."""
    for phase in run.phases if old.is_dir() else ():
        if phase.simulate is not None:
            for path in (path_of(old, phase.name), folder_of(old) / f"{phase.name}.0.1.arrow"):
                path.parent.mkdir(exist_ok=True)
                path.touch()
    return old


def found(journal, run, old):
    with_files(run, old)
    return find_kept_work(journal, journal.run("old"), run, old)


async def resumed(journal, run, old, *, parent="old", uid="new"):
    """The journal with a run `uid` that has resumed the `parent`."""
    kept = find_kept_work(journal, journal.run(parent), run, with_files(run, old))

    def change(tx):
        tx.submit(uid=uid, key=None, name="r", spec=run.raw(), folder="/", parent=parent)
        kept.record(tx, uid)

    await kept.record_tasks(journal, uid)
    await journal.write(change)
    return journal


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


async def test_a_value_whose_file_is_gone_is_missing(journal, old):
    run = run_of("t")
    stored = [*ALL_TASKS[:3], task("thrice", 2, value_file="results/p0/thrice-2.json")]
    await record(journal, run, {0: (stored, "", "tasks_done")})
    assert found(journal, run, old).phases[0].tasks == 3
    (old / "results" / "p0").mkdir(parents=True)
    (old / "results" / "p0" / "thrice-2.json").write_text("[]")
    assert found(journal, run, old).is_complete


async def test_without_any_files_there_is_nothing_to_take_over(journal, old):
    run = run_of("t")
    await record(journal, run, {0: (ALL_TASKS[:1], "", "failed")})
    old.rmdir()
    with pytest.raises(UsageError, match="files of run old are gone"):
        found(journal, run, old)


async def test_files_of_kept_episodes_that_are_gone_or_damaged_are_named(journal, old):
    run = run_of("s", "s", "s", "t")
    short = [msgspec.structs.replace(one, steps=0) for one in FOUR]
    phases = {0: (FOUR, "max_episodes", "max_episodes"), 1: (UNTIL, "", "failed"), 2: (short, "", "")}
    await record(journal, run, phases)
    with_files(run, old)
    (folder_of(old) / "p2.0.1.arrow").unlink()
    (folder_of(old) / "p0.0.1.arrow").unlink()

    def refused():
        with pytest.raises(UsageError) as caught:
            find_kept_work(journal, journal.run("old"), run, old)
        return str(caught.value)

    told = f"run old can't be resumed: {parquet_of(old, 'p0')} is"
    hint = "put a copy of the file back, or submit its run file again"
    assert refused() == f"{told} gone; {hint}"
    pq.write_table(pa.table({"step": [*range(999)]}), parquet_of(old, "p0"))
    assert [phase.is_whole for phase in find_kept_work(journal, journal.run("old"), run, old).phases[:2]] == [
        True,
        False,
    ]
    whole = parquet_of(old, "p0").read_bytes()
    for damaged in (whole[:-1], whole[:500], b"", whole[100:], whole[:4] + whole[-8:]):
        parquet_of(old, "p0").write_bytes(damaged)
        assert refused() == f"{told} damaged: it is no whole Parquet file; {hint}"
    parquet_of(old, "p0").write_bytes(whole)
    for phase in ("p0", "p1", "p2"):
        path_of(old, phase).rename(old / "beside")
        assert f"{path_of(old, phase)} is gone" in refused()
        (old / "beside").rename(path_of(old, phase))
    parquet_of(old, "p0").unlink()
    parquet_of(old, "p0").mkdir()
    assert f"{parquet_of(old, 'p0')} is gone" in refused()


async def test_a_run_that_never_began_has_everything_missing(journal, old):
    run = run_of("st", "t")
    await record(journal, run, {})
    old.rmdir()
    kept = found(journal, run, old)
    assert (kept.first_phase, kept.is_complete) == (0, False)


FOUR = [episode(n) for n in range(4)]
UNTIL = [episode(0), episode(1, "truncated"), episode(2, "cancelled")]


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
    assert found(journal, run, old).failed == (1, "phase p0: 1 ended badly, first episode 3: bad")


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


def all_of(folder, *phases):
    return KeptWork(parent="old", folder=folder, phases=phases, failures=(), restored=())


def test_files_come_along_and_what_tasks_may_write_into_is_their_own(tmp_path, old):
    for name in (
        "results/p/t-0.json", "agents/a.state", "checkpoints/p/a.best.state", "mine/deep/model.pt", "run.json", "result.json",
    ):  # fmt: skip
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(name)
    (old / "results" / "p" / ".t-1.json.part").write_text("half")
    (old / "latest").symlink_to("mine/deep")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(old / "mine" / "s"))
    new = old.with_name("new")
    stage(all_of(old), new)
    assert not new.exists()
    publish(new)
    names = {
        str(path.relative_to(new)) for path in new.rglob("*") if path.is_file() and "latest" not in str(path)
    }
    whole = {"results/p/t-0.json", "agents/a.state", "checkpoints/p/a.best.state"}
    assert names == {*whole, "mine/deep/model.pt"}
    assert (new / "latest" / "model.pt").read_text() == "mine/deep/model.pt"
    assert (new / "latest").is_symlink()
    assert all((new / name).samefile(old / name) for name in whole)
    (new / "mine/deep/model.pt").write_text("changed")
    assert (old / "mine/deep/model.pt").read_text() == "mine/deep/model.pt"
    assert [path.name for path in new.parent.iterdir() if path.name.startswith(".")] == []


def test_without_links_files_are_copied(monkeypatch, old):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(type(old), "hardlink_to", refuse)
    (old / "results").mkdir()
    (old / "results" / "t.json").write_text("1")
    new = old.with_name("new")
    stage(all_of(old), new)
    publish(new)
    assert (new / "results" / "t.json").read_text() == "1"
    assert not (new / "results" / "t.json").samefile(old / "results" / "t.json")


async def test_a_crash_between_the_record_and_the_name_of_the_files_is_repaired(journal, old):
    for uid in ("recorded", "unrecorded"):
        stage(all_of(old), old.with_name(uid))
    await journal.write(lambda tx: tx.submit(uid="recorded", key=None, name="r", spec={}, folder="/"))
    finish_interrupted(journal, old.parent)
    assert sorted(path.name for path in old.parent.iterdir()) == ["old", "recorded"]


def test_what_was_not_recorded_is_taken_away(old):
    new = old.with_name("new")
    stage(all_of(old), new)
    assert staging_of(new).is_dir()
    discard(new)
    assert [path.name for path in old.parent.iterdir()] == ["old"]


async def test_lines_of_episodes_that_are_played_again_stay_behind_and_the_old_file_as_it_was(journal, old):
    run = run_of("s", "t")
    crashed = [episode(0), episode(1, "crashed"), episode(2)]
    await record(journal, run, {0: (crashed, "max_episodes", "failed")})
    lines = path_of(old, "p0")
    with EpisodeFile(path=lines, phase="p0", mode="train", reported=IndexRanges()) as file:
        file.append(*crashed)
    before = lines.read_bytes()
    new = old.with_name("new")
    stage(found(journal, run, old), new)
    publish(new)
    assert [json.loads(line)["index"] for line in path_of(new, "p0").open()] == [0, 2]
    assert lines.read_bytes() == before

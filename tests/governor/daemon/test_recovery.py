"""After an earlier invocation: its processes are confirmed dead; its runs continue, start again, or end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import msgspec
import pytest

from governor.daemon import heartbeat
from governor.daemon.recovery import DEATHS, Recovery
from governor.journal.readers import Readers
from governor.messages import EpisodeRecord, TaskRecord
from governor.processes import kill_tree
from governor.processes.identity import ProcessIdentity, boot_id
from governor.run_file.load import parse
from governor.runs.record.result import whole_result
from governor.tasks.cluster import head

PHASES = [{"name": name, "tasks": [{"id": "t", "call": "m:f"}]} for name in "ab"]


def spec(**more):
    return parse({"name": "r", "phases": PHASES, **more}).raw()


@pytest.fixture(autouse=True)
async def r1(journal):
    await submit(journal, "r1")


async def submit(journal, uid, **more):
    await journal.write(lambda tx: tx.submit(uid=uid, key=None, name="r", spec=spec(**more), folder="/"))


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


async def record(journal, *events, uid="r1"):
    def change(tx):
        for kind, data in events:
            if kind == "run.assigned":
                tx.started(uid)
            tx.event(uid, kind, data)

    await journal.write(change)


def died(folder, *, at, boot=None):
    """A daemon before this one has left its heartbeat behind."""
    beat = heartbeat.Beat(daemon=ProcessIdentity(pid=77, ticks=5, boot=boot or boot_id()), at=at)
    (folder / heartbeat.NAME).write_bytes(msgspec.json.encode(beat))


async def start(journal, folder):
    """Does the steps of a start; returns the runs that it queues."""
    recovery = Recovery(journal=journal, state_dir=folder)
    await recovery.clean_up()
    async with recovery.heartbeat.beating(in_order=lambda: True):
        return await recovery.assignments(folder / "runs")


def kinds(journal, uid="r1"):
    return [event.kind for event in journal.events(uid)]


TASKS = {"conductor": "tasks", "incarnation": 1}
ASSIGNED = ("run.assigned", {"at": 100.0})
STOPPED = (("traces.removed", {"at": 130.0}), ("run.interrupted", {"reason": "going down"}))
EPISODE = EpisodeRecord(index=0, worker=0, seed=1, outcome="terminated", value=2.0, steps=3, seconds=0.1)
TASK = TaskRecord(task="t", run=0, outcome="succeeded", attempts=1, seconds=0.1, value=1)


class TestProcesses:
    @pytest.mark.parametrize("change", [{}, {"ticks": 1}, {"boot": "another"}])
    async def test_the_recorded_one_is_killed_not_a_later_owner_of_its_number(
        self, journal, tmp_path, sleeper, change
    ):
        born = {**TASKS, **msgspec.structs.asdict(ProcessIdentity.of(sleeper.pid)), **change}
        await record(journal, ASSIGNED, ("conductor.started", born))
        assert len(await start(journal, tmp_path)) == 1
        assert (sleeper.poll() is not None) == (change == {})

    async def test_a_process_that_cannot_be_killed_holds_back_the_runs_that_it_may_work_on(
        self, journal, tmp_path, sleeper, monkeypatch
    ):
        await submit(journal, "fresh")
        await record(
            journal,
            ASSIGNED,
            ("conductor.started", {**TASKS, **msgspec.structs.asdict(ProcessIdentity.of(sleeper.pid))}),
        )
        monkeypatch.setattr(kill_tree, "KILL_SECONDS", 0.2)
        monkeypatch.setattr(kill_tree, "send", lambda handle, number: None)
        recovery = Recovery(journal=journal, state_dir=tmp_path)
        await recovery.clean_up()
        assert [process.pid for process in recovery.survivors] == [sleeper.pid]
        assert [each.uid for each in await recovery.assignments(tmp_path / "runs")] == ["fresh"]
        assert list(recovery.held) == ["r1"]
        assert str(sleeper.pid) in recovery.held["r1"]
        sleeper.kill()
        assert [each.uid for each in await recovery.held_assignments(tmp_path / "runs")] == ["r1"]
        assert recovery.held == {}

    async def test_the_loop_runs_while_a_process_is_slow_to_exit(
        self, journal, tmp_path, sleeper, monkeypatch
    ):
        await record(
            journal,
            ASSIGNED,
            ("conductor.started", {**TASKS, **msgspec.structs.asdict(ProcessIdentity.of(sleeper.pid))}),
        )
        killed = threading.Event()

        def kill(handle, number):
            assert killed.wait(timeout=30), "the loop was blocked"
            sleeper.kill()

        monkeypatch.setattr(kill_tree, "send", kill)
        asyncio.get_running_loop().call_later(0.01, killed.set)
        recovery = Recovery(journal=journal, state_dir=tmp_path)
        await recovery.clean_up()
        assert recovery.survivors == []


class TestInterruption:
    async def test_a_run_that_was_in_work_when_the_daemon_died_has_it_on_record_once(self, journal, tmp_path):
        await submit(journal, "waits")
        await record(journal, ASSIGNED)
        died(tmp_path, at=160.0)
        [first, second] = await start(journal, tmp_path)
        [event] = journal.events_of("r1", ("run.interrupted",))
        assert event.data == {
            "reason": "the daemon died (pid 77): it was killed, or crashed",
            "by": "recovery",
            "died": True,
            "at": 160.0,
        }
        assert (first.uid, first.worked, second.uid, second.worked) == ("r1", 60.0, "waits", 0.0)
        assert kinds(journal, "waits") == ["run.accepted"]
        await start(journal, tmp_path)
        assert kinds(journal).count("run.interrupted") == 1

    @pytest.mark.parametrize(
        ("boot", "reason"),
        [("another", "the machine went down with the daemon"), (None, "could not record it")],
    )
    async def test_the_reason_tells_how_it_went_down(self, journal, tmp_path, boot, reason):
        await record(journal, ASSIGNED)
        if boot is not None:
            died(tmp_path, at=160.0, boot=boot)
        await start(journal, tmp_path)
        [event] = journal.events_of("r1", ("run.interrupted",))
        assert reason in event.data["reason"]
        assert event.data["died"] == (boot is not None)

    async def test_an_orderly_stop_is_on_record_already(self, journal, tmp_path):
        await record(journal, ASSIGNED, *STOPPED)
        died(tmp_path, at=160.0)
        [assignment] = await start(journal, tmp_path)
        assert kinds(journal).count("run.interrupted") == 1
        assert (assignment.worked, assignment.restarts_used) == (30.0, 0)

    async def test_a_start_that_fails_before_it_has_recorded_the_crash_loses_nothing(self, journal, tmp_path):
        died(tmp_path, at=160.0)
        Recovery(journal=journal, state_dir=tmp_path)
        assert Recovery(journal=journal, state_dir=tmp_path).heartbeat.last.at == 160.0


class TestPolicy:
    async def test_a_run_continues_in_its_first_unfinished_phase(self, journal, tmp_path):
        [assignment] = await start(journal, tmp_path)
        assert assignment.first_phase == 0
        await record(journal, ASSIGNED, ("phase.ended", {"index": 0, "end": "tasks_done"}), *STOPPED)
        [assignment] = await start(journal, tmp_path)
        assert assignment.first_phase == 1

    @pytest.mark.parametrize("begun", [False, True])
    @pytest.mark.parametrize("how", ["stop", "death"])
    async def test_never(self, journal, tmp_path, begun, how):
        await submit(journal, "n", resume="never")
        if begun:
            await record(journal, ASSIGNED, *(STOPPED if how == "stop" else ()), uid="n")
        died(tmp_path, at=160.0)
        queued = [assignment.uid for assignment in await start(journal, tmp_path)]
        assert queued == (["r1"] if begun else ["r1", "n"])
        if begun:
            result = journal.result("n")
            assert result.outcome == "failed"
            assert "resume: never" in result.reason
            assert kinds(journal, "n")[-2:] == ["run.interrupted", "run.ended"]

    async def test_restart_begins_anew_and_keeps_the_events_and_the_time(self, journal, tmp_path):
        await submit(journal, "n", resume="restart")
        await record(journal, ASSIGNED, ("phase.started", {"index": 0, "phase": "a"}), uid="n")
        await journal.write(lambda tx: (tx.tasks("n", 0, [TASK]), tx.episodes("n", 0, [EPISODE])))
        await record(journal, ("phase.ended", {"index": 0, "end": "tasks_done"}), uid="n")
        files = tmp_path / "runs" / "n" / "agents"
        files.mkdir(parents=True)
        (files / "walker.state").touch()
        before = journal.events("n")
        died(tmp_path, at=160.0)
        [_, assignment] = await start(journal, tmp_path)
        assert (assignment.first_phase, assignment.worked) == (0, 60.0)
        assert not files.exists()
        assert ([*journal.tasks("n", 0)], [*journal.episodes("n", 0)]) == ([], [])
        events = journal.events("n")
        assert events[: len(before)] == before, "what has happened stays on record"
        assert [event.kind for event in events[len(before) :]] == ["run.interrupted", "run.restarted"]
        assert events[-1].data == {"discarded": {"episodes": 1, "tasks": 1}}
        await start(journal, tmp_path)
        assert kinds(journal, "n").count("run.restarted") == 1, "it has not begun since"
        assert await journal.write(lambda tx: tx.tasks("n", 0, [TASK])) == [TASK], "it counts again"

    async def test_the_result_of_a_run_that_began_anew_tells_of_its_last_life_alone(self, journal, tmp_path):
        await submit(journal, "n", resume="restart")
        await record(
            journal,
            ASSIGNED,
            ("phase.started", {"index": 0}),
            ("phase.ended", {"index": 0, "end": "tasks_done"}),
            ("phase.started", {"index": 1}),
            *STOPPED,
            uid="n",
        )
        await start(journal, tmp_path)
        end = {"from": "running", "to": "finalizing", "outcome": "aborted", "reason": "enough"}
        await record(journal, ASSIGNED, ("phase.started", {"index": 0}), ("run.transition", end), uid="n")
        await start(journal, tmp_path)
        assert [(phase.name, phase.end) for phase in journal.result("n").phases] == [("a", "aborted")]

    async def test_files_of_a_discarded_life_go_also_when_the_daemon_died_before_it_removed_them(
        self, journal, tmp_path
    ):
        await submit(journal, "n", resume="restart")
        await record(journal, ASSIGNED, *STOPPED, ("run.restarted", {}), uid="n")
        (tmp_path / "runs" / "n").mkdir(parents=True)
        await start(journal, tmp_path)
        assert not (tmp_path / "runs" / "n").exists()

    @pytest.mark.parametrize("between", [None, "record", "stop"])
    @pytest.mark.parametrize("resume", ["continue", "restart"])
    async def test_a_run_with_which_the_daemon_crashes_repeatedly_has_failed(
        self, journal, tmp_path, between, resume
    ):
        await submit(journal, "n", resume=resume)
        for number in range(DEATHS):
            assert journal.run("n").outcome is None
            await record(journal, ASSIGNED, uid="n")
            if between and number == 2:
                await journal.write(lambda tx: tx.tasks("n", 0, [TASK]))
                if between == "stop":
                    await record(journal, *STOPPED, uid="n")
            died(tmp_path, at=100.0)
            await start(journal, tmp_path)
        row = journal.run("n")
        continues = between == "stop" or (between == "record" and resume == "continue")
        assert row.outcome == (None if continues else "failed")
        assert continues or "the daemon crashed 5 times in a row" in row.reason

    async def test_a_run_that_was_being_finalized_comes_to_the_end_that_was_decided(self, journal, tmp_path):
        simulate = {"environment": "e", "agents": ["a"], "episodes": 2}
        conductors = {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}}
        played = [{"name": "a", "simulate": simulate}]
        await submit(journal, "p", phases=played, conductors=conductors)
        await journal.write(lambda tx: tx.episodes("p", 0, [EPISODE]))
        await record(
            journal,
            ASSIGNED,
            ("phase.started", {"index": 0}),
            ("phase.ended", {"index": 0, "end": "aborted"}),
            (
                "run.transition",
                {"from": "running", "to": "finalizing", "outcome": "aborted", "reason": "enough"},
            ),
            uid="p",
        )
        assert [each.uid for each in await start(journal, tmp_path)] == ["r1"]
        result = journal.result("p")
        assert (result.outcome, result.reason) == ("aborted", "enough")
        assert result.phases[0].episodes == {"terminated": 1}
        assert kinds(journal, "p")[-1] == "run.ended"
        assert (tmp_path / "runs" / "p" / "result.json").exists()
        assert [row.uid for row in journal.unended()] == ["r1"]
        assert [each.uid for each in await start(journal, tmp_path)] == ["r1"], "it ends once"


class TestFiles:
    async def test_a_run_that_resumes_another_has_its_files_before_it_continues(self, journal, tmp_path):
        runs = tmp_path / "runs"
        (runs / ".r1.part" / "results").mkdir(parents=True)
        (runs / ".r2.part").mkdir()
        assert len(await start(journal, tmp_path)) == 1
        assert (runs / "r1" / "results").is_dir()
        assert list(runs.glob(".*.part")) == []

    async def test_what_was_half_written_goes_and_what_users_wrote_stays(self, journal, tmp_path):
        folder = tmp_path / "runs" / "r1"
        ours = [
            ".result.json.part",
            "results/a/.t-0.pkl.part",
            "agents/.w.state.part",
            "episodes/.p.jsonl.part",
        ]
        stay = [
            "model.part",
            "mine/data.part",
            "checkpoints/p/index.json.new",
            "checkpoints/p/shard-0.part",
            "results/t-0.pkl",
            "agents/w.state",
            "episodes/p.jsonl",
        ]
        for name in (*ours, *stay):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        await start(journal, tmp_path)
        left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert left == set(stay)

    async def test_temp_folders_of_an_earlier_ray_head_of_this_instance_alone_are_removed(
        self, journal, tmp_path, monkeypatch
    ):
        far, other = tmp_path / "far", tmp_path / "other"
        far.mkdir()
        other.mkdir()
        monkeypatch.setattr(head, "FALLBACK_FOLDER", far)
        deep = tmp_path / ("x" * 60)
        folders = [
            head.RayHead(state_folder=state, runtime_folder=deep, num_cpus=1)._make_temp()
            for state in (tmp_path, other)
        ]
        (folders[0] / "t" / "session").mkdir(parents=True)
        await start(journal, tmp_path)
        assert list(far.iterdir()) == folders[1:]


async def test_incarnations_go_on_so_that_none_is_used_twice_in_a_run(journal, tmp_path):
    [assignment] = await start(journal, tmp_path)
    assert assignment.incarnations == ()
    told = [("tasks", 1), ("simulation", 1), ("tasks", 2), ("tasks", 5), ("simulation", 1)]
    await record(
        journal, *(("conductor.started", {"conductor": name, "incarnation": number}) for name, number in told)
    )
    [assignment] = await start(journal, tmp_path)
    assert assignment.incarnations == (("simulation", 1), ("tasks", 5))


async def test_a_large_result_of_a_run_that_was_being_finalized_is_in_a_file(journal, tmp_path):
    tasks = [
        TaskRecord(task=f"t{n}", run=0, outcome="succeeded", attempts=1, seconds=0.1) for n in range(2000)
    ]
    await journal.write(lambda tx: tx.tasks("r1", 0, tasks))
    await record(
        journal,
        ("phase.started", {"index": 0}),
        ("run.transition", {"from": "running", "to": "finalizing", "outcome": "failed", "reason": "why"}),
    )
    assert await start(journal, tmp_path) == []
    assert journal.result_file("r1") == "result.failed.msgpack"
    assert len(whole_result(journal, "r1", tmp_path / "runs" / "r1").phases[0].tasks) == 2000


async def test_a_start_reads_each_run_that_has_not_ended_once_and_none_that_has(
    journal, tmp_path, monkeypatch
):
    """Counted in questions to the journal."""
    asked = []
    rows = Readers.rows
    monkeypatch.setattr(Readers, "rows", lambda self, *asking: asked.append(asking) or rows(self, *asking))

    async def questions(*, ended, queued):
        for number in range(ended):
            uid = f"ended {len(asked)} {number}"
            await submit(journal, uid)
            await journal.write(lambda tx, uid=uid: tx.ended(uid))
        for number in range(queued):
            await submit(journal, f"queued {len(asked)} {number}")
        asked.clear()
        await start(journal, tmp_path)
        return len(asked)

    alone = await questions(ended=0, queued=0)
    assert await questions(ended=20, queued=0) == alone
    assert await questions(ended=0, queued=20) <= alone + 20 * 6

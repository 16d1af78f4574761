"""The files that a resumed run takes over: which must be there, which are shared, and what a crash leaves of them."""

from __future__ import annotations

import json
import socket

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from governor.episodes.records.episode_file import EpisodeFile, folder_of, parquet_of, path_of
from governor.errors import UsageError
from governor.index_ranges import IndexRanges
from governor.messages.figures import PhaseFigures
from governor.runs.record.resume import KeptPhase, KeptWork, find_kept_work, stage
from governor.runs.record.staging import discard, finish_interrupted, publish, staging_of
from tests.support.resumed_runs import (
    ALL_TASKS,
    FOUR,
    UNTIL,
    episode,
    found,
    record,
    run_of,
    task,
    with_files,
)


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


def all_of(folder, *phases):
    return KeptWork(parent="old", folder=folder, phases=phases, failures=(), restored=())


def phase_named(name):
    return KeptPhase(
        index=0, name=name, episodes=PhaseFigures(), tasks=0, gone=frozenset(), events=(("phase.ended", {}),)
    )


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
    stage(all_of(old, phase_named("p")), new)
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


def test_files_that_tasks_wrote_where_run_governor_writes_too_are_the_new_run_s_own(old):
    names = (
        "results/summary.csv", "results/p/notes.json", "results/other/t-0.json", "checkpoints/model.state",
        "checkpoints/p/model.pt", "agents/log.txt", "episodes/plot.png", "episodes/notes.jsonl", "code/main.py",
    )  # fmt: skip
    for name in names:
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text("old")
    new = old.with_name("new")
    stage(all_of(old, phase_named("p")), new)
    publish(new)
    for name in names:
        with (new / name).open("a") as file:
            file.write(" and new")
    assert {name: (old / name).read_text() for name in names} == dict.fromkeys(names, "old")


def test_the_copy_of_the_code_is_shared_since_it_can_t_be_written(old):
    copy = old / "code" / "main.py"
    copy.parent.mkdir()
    copy.write_text("")
    copy.chmod(0o444)
    new = old.with_name("new")
    stage(all_of(old), new)
    publish(new)
    assert (new / "code" / "main.py").samefile(copy)


def test_a_link_into_the_old_run_s_folder_leads_into_the_new_one_s(tmp_path, old):
    (old / "step-3").mkdir()
    (old / "step-3" / "model.pt").write_text("old")
    real = tmp_path / "elsewhere"
    real.mkdir()
    (old / "latest").symlink_to(old / "step-3")
    (old / "data").symlink_to(real)
    new = old.with_name("new")
    stage(all_of(old), new)
    publish(new)
    (new / "latest" / "model.pt").write_text("new")
    assert (old / "step-3" / "model.pt").read_text() == "old"
    assert (new / "latest").readlink() == new / "step-3"
    assert (new / "data").readlink() == real


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

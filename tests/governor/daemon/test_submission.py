"""Files of runs that are handed in: they are there if the run is on record, and gone if it is not."""

import asyncio

import pytest

from governor.daemon.submission.files import CodeRecorder, recorded_with_files
from governor.errors import TryAgain
from governor.runs.record import code, staging


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "agent.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    return [tmp_path / "runs" / name for name in ("a", "b")]


def names(runs):
    return sorted(path.name for path in runs[0].parent.iterdir())


def recording(runs, home, record, **how):
    return CodeRecorder().record(runs, str(home), copies=True, record=record, is_new=lambda new: new, **how)


async def test_runs_that_are_recorded_have_their_copies_and_a_run_without_one_has_nothing(runs, home):
    told = []

    async def record(submission):
        told.append(submission)
        return len(told) == 1

    assert await recording(runs, home, record)
    assert names(runs) == ["a", "b"]
    assert {(run / "code" / "agent.py").read_text() for run in runs} == {"x = 1\n"}
    assert not await recording([run.with_name(f"{run.name}2") for run in runs], home, record), (
        "the key was known"
    )
    assert names(runs) == ["a", "b"]
    await CodeRecorder().record([], str(home), copies=False, record=record, is_new=bool)
    assert (told[0].copied["copied_from"], told[0].copied["clean"]) == (str(home), None)
    assert (told[0].digest, told[2].copied) == (told[2].digest, {})


async def test_what_cannot_be_copied_or_recorded_leaves_nothing(runs, home):
    async def record(_):
        raise TryAgain("the journal is busy")

    with pytest.raises(TryAgain, match="busy"):
        await recording(runs, home, record)
    assert names(runs) == []
    with pytest.raises(TryAgain, match=r"the code in .*/nowhere can't be copied: .*No such file"):
        await recording(runs, home / "nowhere", record)
    assert names(runs) == []


async def test_many_who_submit_from_one_folder_at_the_same_time_share_a_look_that_began_after_they_asked(
    home, monkeypatch
):
    digest, looks, begun = code.digest, [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def counted(folder, **options):
        looks.append(folder)
        loop.call_soon_threadsafe(begun.set)
        return digest(folder, **options)

    monkeypatch.setattr(code, "digest", counted)
    recorder = CodeRecorder()
    first = asyncio.create_task(recorder.submission_of(str(home)))
    await begun.wait()
    (home / "agent.py").write_text("x = 22\n")
    others = await asyncio.gather(*(recorder.submission_of(str(home)) for _ in range(50)))
    await first
    assert len(looks) == 2
    assert {other.digest for other in others} == {digest(home)}
    assert await recorder.submission_of(str(home)) == others[0]
    assert len(looks) == 3


async def test_a_submit_that_is_cancelled_leaves_the_decision_to_the_next_start(runs):
    begun = asyncio.Event()

    async def record():
        begun.set()
        await asyncio.Event().wait()

    def stage():
        for run in runs:
            staging.begin(run)

    how = {"stage": stage, "record": record, "is_new": bool, "what": "the files"}
    work = asyncio.create_task(recorded_with_files(runs, **how))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert names(runs) == [".a.part", ".b.part"]

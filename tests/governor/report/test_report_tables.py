"""Episodes and tasks of a report: which rows stay, and which episodes are shown step by step."""

from itertools import pairwise

import pytest

from governor.episodes.records import episode_file
from governor.messages import EpisodeRecord, PhaseResult, TaskRecord
from governor.report import tables
from governor.report.tables import PhaseEpisodes, episode_table, room_of_a_phase, task_table


@pytest.fixture
def written(tmp_path):
    def write(*records):
        path = episode_file.path_of(tmp_path, "train")
        with episode_file.EpisodeFile(path=path, phase="train", mode="train", reported=()) as file:
            file.append(*records)
        return tmp_path

    return write


def episode(index, value=0.0, outcome="terminated", **more):
    fields = {"worker": 0, "seed": 1, "steps": 3, "seconds": 0.5}
    return EpisodeRecord(index=index, outcome=outcome, value=value, **{**fields, **more})


def values(table, name):
    [column] = [each for each in table.columns if each.name == name]
    return [column.dictionary[each] for each in column.values] if column.dictionary else column.values


def test_rows_have_all_that_the_file_has(written):
    folder = written(
        episode(0, 1.5, metrics={"loss": 0.25}),
        episode(1, float("nan")),
        episode(2, outcome="failed", reason="no"),
    )
    table = episode_table([PhaseEpisodes("train", 10).read(folder)], "u")
    assert values(table, "return") == [1.5, None, 0.0]
    assert values(table, "loss") == [0.25, None, None]
    assert values(table, "outcome") == ["terminated", "terminated", "failed"]
    assert values(table, "reason") == ["", "", "no"]
    assert (table.total, table.shown, table.note) == (3, 3, "")


def test_a_line_that_is_being_written_is_no_row(written):
    folder = written(episode(0))
    with episode_file.path_of(folder, "train").open("ab") as file:
        file.write(b'{"index":1,"outcome":"termi')
    assert PhaseEpisodes("train", 10).read(folder).total == 1


def test_of_too_many_the_bad_and_the_last_ones_stay_and_others_evenly(written, monkeypatch):
    monkeypatch.setattr(tables, "LAST_ROWS", 10)
    bad = {500, 501, 777}
    folder = written(
        *(episode(index, outcome="failed" if index in bad else "terminated") for index in range(5000))
    )
    table = episode_table([PhaseEpisodes("train", 100).read(folder)], "u")
    shown = values(table, "episode")
    assert shown == sorted(shown)
    assert bad <= {*shown}
    assert shown[-10:] == [*range(4990, 5000)]
    assert 60 <= len(shown) == table.shown <= 100
    assert max(later - one for one, later in pairwise(shown)) <= 5000 / 30
    assert table.total == 5000
    assert "5,000 episodes" in table.note
    assert "governor results u --of episodes" in table.note


def test_episodes_are_chosen_once_by_their_first_reason(written):
    returns = [3.0, 9.0, -2.0, 4.0, 5.0]
    folder = written(
        *(episode(index, value) for index, value in enumerate(returns)), episode(5, outcome="crashed")
    )
    found = PhaseEpisodes("train", 10).read(folder, frozenset({4})).chosen()
    assert {(choice.line.index, choice.why) for choice in found} == {
        (4, "asked"), (5, "failed"), (1, "best"), (2, "worst"), (3, "median"),
    }  # fmt: skip


def test_a_phase_without_a_file_has_no_rows(tmp_path):
    assert episode_table([PhaseEpisodes("train", 10).read(tmp_path)], "u").columns == []


def test_tasks_of_the_result_and_of_a_file(tmp_path):
    (tmp_path / "more.jsonl").write_text(
        '{"task":"b","run":0,"outcome":"failed","error":"no","metrics":{}}\n'
    )
    done = TaskRecord(
        task="a",
        run=1,
        outcome="succeeded",
        attempts=2,
        seconds=0.5,
        value={"n": [1]},
        metrics={"score": 1.0},
    )
    phases = [
        PhaseResult(name="one", mode="train", end="", tasks=(done,)),
        PhaseResult(name="two", mode="train", end="", tasks_file="more.jsonl"),
    ]
    table = task_table(phases, tmp_path, "u")
    assert values(table, "task") == ["a", "b"]
    assert values(table, "phase") == ["one", "two"]
    assert values(table, "value") == ['{"n":[1]}', ""]
    assert values(table, "score") == [1.0, None]
    assert values(table, "error") == ["", "no"]
    assert table.total == 2


@pytest.mark.parametrize(
    ("counts", "room"),
    [([8000, 2000], 10_000), ([10_000], 10_000), ([], 10_000), ([9000, 2000], 8000), ([20_000, 20_000], 5000), ([9, 9, 30_000], 9982)],
)  # fmt: skip
def test_phases_with_few_episodes_leave_their_room_to_others(counts, room):
    assert room_of_a_phase(counts) == room
    assert sum(min(count, room) for count in counts) <= tables.MOST_ROWS


def test_the_note_says_how_many_of_the_bad_ones_are_here(written):
    folder = written(
        *(episode(index, outcome="failed" if index % 2 else "terminated") for index in range(5000))
    )
    table = episode_table([PhaseEpisodes("train", 300).read(folder)], "u")
    failed = values(table, "outcome").count("failed")
    assert f"{failed:,} of the 2,500 that ended badly" in table.note


def test_a_median_is_chosen_also_of_rows_that_are_thinned(written, monkeypatch):
    monkeypatch.setattr(tables, "LAST_ROWS", 10)
    folder = written(*(episode(index, float(index * 7919 % 10_007)) for index in range(5000)))
    [median] = [
        choice for choice in PhaseEpisodes("train", 100).read(folder).chosen() if choice.why == "median"
    ]
    assert abs(median.line.value - 5000) < 500


def test_an_episode_that_failed_is_no_median(written):
    folder = written(
        episode(0, 2.0, outcome="failed"), *(episode(index, float(index)) for index in range(1, 6))
    )
    assert {choice.why: choice.line.index for choice in PhaseEpisodes("train", 10).read(folder).chosen()} == {
        "failed": 0, "best": 5, "worst": 1, "median": 3,
    }  # fmt: skip


def test_tasks_that_were_cancelled_take_no_room_of_those_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_ROWS", 100)
    monkeypatch.setattr(tables, "LAST_ROWS", 10)
    done = tuple(
        TaskRecord(task="fit", run=index, outcome="failed" if index == 1501 else "cancelled")
        for index in range(3000)
    )
    table = task_table([PhaseResult(name="one", mode="train", end="", tasks=done)], tmp_path, "u")
    assert 1501 in values(table, "run")
    assert ": those that ended badly" in table.note

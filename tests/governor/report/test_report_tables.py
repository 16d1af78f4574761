"""Episodes and tasks of a report: which rows stay, and which episodes are shown step by step."""

from itertools import pairwise

import pytest

from governor.episodes.records import episode_file
from governor.messages import EpisodeRecord, PhaseResult, TaskRecord
from governor.report import tables
from governor.report.tables import PhaseEpisodes, episode_table, task_table


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

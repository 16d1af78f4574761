"""The steps and the messages of chosen episodes."""

import math

from governor.episodes import trajectories
from governor.episodes.text.sessions import DataManager
from governor.report import samples
from governor.report.samples import samples_of
from governor.report.tables import Choice, EpisodeLine
from tests.support.language_models.recorded_sessions import record, session
from tests.support.recorded_steps import play, recorder


def choice(index, why="best"):
    return Choice(EpisodeLine(index=index, outcome="terminated", value=1.5), why)


def column(found, name):
    [values] = [each.values for each in found.columns if each.name == name]
    return values


def test_the_steps_of_chosen_episodes_are_read_from_the_file_of_their_phase(tmp_path, monkeypatch):
    made = recorder(tmp_path)
    for index in range(5):
        play(made, index, steps=4, first=index * 10)
    made.close()
    chosen = [choice(3), choice(1, "asked"), choice(9)]
    assert samples_of(tmp_path, "train", chosen) == ([], []), "the phase is at work"
    trajectories.finalize(tmp_path, "train")
    found, sessions = samples_of(tmp_path, "train", chosen)
    assert sessions == []
    assert [(each.episode, each.why, each.value) for each in found] == [(3, "best", 1.5), (1, "asked", 1.5)]
    assert column(found[0], "observation") == [30, 31, 32, 33]
    assert column(found[0], "action") == [0, 1, 0, 1]
    assert column(found[0], "terminated") == ["false", "false", "false", "true"]
    monkeypatch.setattr(samples, "MOST_STEPS", 3)
    [cut], _ = samples_of(tmp_path, "train", [choice(3)])
    assert (column(cut, "observation"), cut.left_out) == ([30, 31, 32], 1)


def test_of_an_episode_that_was_played_again_the_last_attempt_counts(tmp_path):
    made = recorder(tmp_path)
    play(made, 0, steps=2, outcome="cancelled")
    play(made, 0, steps=3, first=50)
    made.close()
    trajectories.finalize(tmp_path, "train")
    [found], _ = samples_of(tmp_path, "train", [choice(0)])
    assert column(found, "observation") == [50, 51, 52]


def test_a_text_session_is_its_messages_with_steps_and_rewards(tmp_path):
    manager = DataManager(tmp_path, phase="train")
    made = session(manager, episode=0)
    question = {"role": "user", "content": "2 + 2?"}
    record(manager, made, 0, messages=[question], response="5", step_reward=0.0)
    again = [question, {"role": "assistant", "content": "5"}, {"role": "user", "content": "No."}]
    record(manager, made, 1, messages=again, response="4", step_reward=1.0, terminated=True)
    manager.close()
    trajectories.finalize(tmp_path, "train")
    steps, [found] = samples_of(tmp_path, "train", [choice(0)])
    assert steps == []
    assert [(turn.role, turn.text, turn.step, turn.reward) for turn in found.messages] == [
        ("user", "2 + 2?", None, None),
        ("assistant", "5", 0, 0.0),
        ("user", "No.", None, None),
        ("assistant", "4", 1, 1.0),
        ("environment", '{"n":1}', None, None),
    ]


def test_a_return_that_is_not_finite_is_not_shown_as_zero(tmp_path):
    made = recorder(tmp_path)
    play(made, 0, steps=2)
    made.close()
    trajectories.finalize(tmp_path, "train")
    line = EpisodeLine(index=0, outcome="terminated", value=None)
    [found], _ = samples_of(tmp_path, "train", [Choice(line, "last")])
    assert math.isnan(found.value)

"""Conditions of the user's own, in each transport: palaestrAI's termination conditions, as users write theirs here."""

from __future__ import annotations

import threading
from importlib import import_module

import msgspec
import pytest

from governor.episodes.records import reports
from governor.episodes.records.episode_file import EpisodeFile
from governor.episodes.rules import condition_objects, user_conditions
from governor.messages import Checkpoint, EpisodeEnded, EpisodeRecord, Evaluate, FlowReport, Plateau, Until
from tests.support.in_process_commands import outcomes

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
ALONE = pytest.mark.parametrize("transport", ["conductors", "in_process"])
WITH_TEXT = pytest.mark.parametrize("transport", ["conductors", "in_process", "text"])


def rule(name, **params):
    return Until(entry=f"conditions_world:{name}", params=params)


def every(episodes, answer, **params):
    return rule("Every", episodes=episodes, answer=answer, **params)


def flows(harness):
    events = harness.links["simulation"].events
    return [event for event in events if isinstance(event, FlowReport)]


@WITH_TEXT
async def test_max_episodes_termination_condition(harness, transport):
    command = await harness.stage(transport)
    records, end = await harness.play(episodes=50, until=(rule("MaxEpisodes", episodes=7),), **command)
    assert [record.index for record in records] == [0, 1, 2, 3, 4, 5, 6]
    named = "until[0] (conditions_world:MaxEpisodes): STOP_PHASE after episode 6"
    assert (end.end, end.ended_by, end.failures) == ("until", named, 0)
    assert flows(harness) == [FlowReport(phase=0, flow="STOP_PHASE", reason=named)]


@EACH
async def test_agent_objective_termination_condition(harness, transport):
    """RESET after each episode, and the end of the phase: the condition's own window is seen on both levels."""
    built = harness.folder / "built"
    command = await harness.stage(transport, entry="walk_world:Built", log=str(built))
    until = (Until(steps=10**6), rule("AgentObjective", window=6, at_least=5.0))
    records, end = await harness.play(episodes=500, until=until, **command)
    ended = [record for record in records if record.outcome == "terminated"]
    assert len(ended) == 6 if transport in {"conductors", "in_process"} else 6 <= len(ended) < 16
    assert end.ended_by.startswith("until[1] (conditions_world:AgentObjective): STOP_PHASE after episode ")
    assert {flow.flow for flow in flows(harness)} == {"RESET", "STOP_PHASE"}
    assert built.stat().st_size > 4


@WITH_TEXT
async def test_agent_objective_multiworker(harness, transport):
    command = await harness.stage(transport, pool=3)
    until = (rule("AgentObjective", window=9, at_least=5.0),)
    records, end = await harness.play(episodes=500, workers=3, until=until, **command)
    assert 9 <= outcomes(records).count("terminated") <= 11
    assert end.end == "until"


@WITH_TEXT
async def test_environment_termination_condition(harness, transport):
    records, end = await harness.play(episodes=3, **await harness.stage(transport))
    assert [(record.outcome, record.steps) for record in records] == [("terminated", 5)] * 3
    assert end.end == "max_episodes"


@WITH_TEXT
@pytest.mark.parametrize(
    ("until", "evaluate", "evaluations"),
    [
        ((rule("EvaluationObjective", threshold=5.0, consecutive=2, min_evaluations=3),), {}, 3),
        ((rule("EvaluationObjective", threshold=5.0, consecutive=4, min_evaluations=3),), {}, 4),
        ((), {"at_least": 5.0, "consecutive": 2}, 2),
        ((), {"plateau": Plateau(patience=3, min_delta=0.01)}, 4),
    ],
    ids=["min_evaluations", "success", "built-in success", "built-in plateau"],
)
async def test_agent_evaluation_objective_termination_condition(
    harness, transport, until, evaluate, evaluations
):
    rules = {"until": until, "evaluate": Evaluate(every=2, episodes=1, **evaluate)}
    records, end = await harness.play(episodes=50, **rules, **await harness.stage(transport))
    assert [record.evaluation for record in records if record.evaluation] == [*range(1, evaluations + 1)]
    assert (len(records), end.metrics["evaluation_return_mean"]) == (3 * evaluations, 5.0)
    assert end.end != "max_episodes"


@ALONE
async def test_the_strongest_flow_control_wins_and_a_built_in_condition_is_asked_as_well(harness, transport):
    command = await harness.stage(transport)
    until = (every(3, "RESET"), every(3, "STOP_SIMULATION"), every(1, "CONTINUE"))
    records, end = await harness.play(episodes=50, until=until, **command)
    assert (len(records), end.ended_by) == (
        3, "until[1] (conditions_world:Every): STOP_SIMULATION after episode 2",
    )  # fmt: skip
    until = (every(30, "STOP_PHASE"), Until(steps=10))
    records, end = await harness.play(episodes=50, until=until, incarnation=2, phase=1, name="two", **command)
    assert (len(records), end.ended_by) == (2, "until[1] (steps)")


@pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds", "text"])
async def test_one_worker_is_asked_about_the_same_episodes_in_the_same_order_each_time(harness, transport):
    log, again = harness.folder / "asked", harness.folder / "again"
    command = await harness.stage(transport)
    records, _ = await harness.play(episodes=30, until=(every(10**9, "PAUSE", log=str(log)),), **command)
    lines = log.read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == [line["index"] for line in harness.lines()]
    done = tuple(records[:20])
    more, _ = await harness.play(
        episodes=30, until=(every(10**9, "PAUSE", log=str(again)),), done=done, incarnation=2, **command
    )
    assert sorted(record.index for record in more) == sorted({*range(30)} - {record.index for record in done})
    assert again.read_text().splitlines()[:20] == lines[:20], "those on record, in their order"
    assert len(again.read_text().splitlines()) == 30


@WITH_TEXT
async def test_what_a_condition_holds_outlives_its_process_and_only_a_stop_on_record_counts(
    harness, transport
):
    command = await harness.stage(transport)
    before, _ = await harness.play(episodes=8, **command)
    until = (every(12, "STOP_PHASE"), every(3, "PAUSE"), every(1, "RESET"))
    records, end = await harness.play(
        episodes=12, until=until[:1], done=tuple(before), incarnation=2, **command
    )
    assert [record.index for record in records] == [8, 9, 10, 11]
    assert end.end == "until"
    done = (*before, *records)
    records, end = await harness.play(episodes=50, until=until, done=done, incarnation=3, **command)
    assert (records, end.end) == ([], "until")
    assert [flow.flow for flow in flows(harness)] == ["STOP_PHASE"], (
        "a later process tells the governor again"
    )


@WITH_TEXT
@pytest.mark.parametrize("answer", ["PAUSE", "RESTART"])
async def test_no_episode_begins_after_pause_and_restart(harness, transport, answer):
    command = harness.command(episodes=30, until=(every(4, answer),), **await harness.stage(transport))
    controller = await harness.start("simulation")
    await controller.perform(command)
    link = harness.links["simulation"]
    await link.next(FlowReport)
    with pytest.raises(TimeoutError):
        await harness.end(seconds=0.3)
    assert sum(isinstance(event, EpisodeEnded) for event in link.events) == 4
    told = len(link.events)
    await controller.perform(command)
    await link.next(FlowReport, after=told)


@ALONE
async def test_an_answer_after_the_last_episode_delays_nothing(harness, transport):
    command = await harness.stage(transport)
    until = (every(4, "RESTART"), every(4, "PAUSE"))
    for number, keeps in enumerate([None, Checkpoint(every=4, last=True)]):
        more = {"incarnation": number + 1, "phase": number, "name": f"p{number}", "checkpoint": keeps}
        _, end = await harness.play(episodes=4, until=until, **more, **command)
        assert (end.end, flows(harness)) == ("max_episodes", [])


async def test_episodes_of_one_worker_share_a_write_and_what_follows_from_one_comes_after_it(
    harness, monkeypatch
):
    monkeypatch.setattr(reports, "LINGER_SECONDS", 1000.0)
    written = []
    append = EpisodeFile.append

    def counted(file, *records):
        written.append([record.index for record in records])
        return append(file, *records)

    monkeypatch.setattr(EpisodeFile, "append", counted)
    until = (every(40, "RESET"), every(100, "STOP_PHASE"))
    records, end = await harness.play(episodes=500, until=until, **await harness.stage("in_process"))
    assert (len(records), end.ended_by) == (
        100, "until[1] (conditions_world:Every): STOP_PHASE after episode 99",
    )  # fmt: skip
    assert [len(indices) for indices in written if indices] == [1, 39, 40, 20]
    events = harness.links["simulation"].events
    told = [each.episode.index if isinstance(each, EpisodeEnded) else each.flow for each in events[-104:-1]]
    assert told == [*range(40), "RESET", *range(40, 80), "RESET", *range(80, 100), "STOP_PHASE"]


async def test_the_episode_with_which_a_built_in_condition_holds_may_have_a_stronger_answer(harness):
    until = (every(2, "SHUTDOWN"), every(2, "PAUSE"), Until(steps=10))
    records, end = await harness.play(episodes=50, until=until, **await harness.stage("in_process"))
    assert (len(records), end.ended_by) == (2, "until[2] (steps)")
    assert [flow.flow for flow in flows(harness)] == ["SHUTDOWN"]


async def test_they_are_asked_about_nothing_behind_the_episode_that_stopped_the_phase(harness):
    lock, log = threading.Condition(), harness.folder / "asked"
    command = harness.command(episodes=9, until=(every(2, "STOP_PHASE", log=str(log)),), workers=3)

    def answered(answer):
        if answer.flow == "STOP_PHASE":
            conditions.end()

    spec = harness.spec("simulation")
    conditions = user_conditions.UserConditions(
        command, spec=spec, lock=lock, answered=answered, failed=pytest.fail
    )
    await conditions.open([])
    record = EpisodeRecord(index=0, worker=0, seed=0, outcome="terminated", value=1.0, steps=5, seconds=0.1)
    with lock:
        conditions.ask([msgspec.structs.replace(record, index=index) for index in range(6)])
    await conditions.close()
    conditions._thread.join(60)
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["0", "1"]


@ALONE
async def test_they_are_asked_about_evaluations_too_and_see_the_metrics_of_the_phase(harness, transport):
    log, asked = harness.folder / "metrics", harness.folder / "asked"
    until = (rule("Metrics", log=str(log)), every(10**9, "PAUSE", log=str(asked)))
    rules = {"evaluate": Evaluate(every=2, episodes=2), "checkpoint": Checkpoint(every=2, last=True)}
    records, end = await harness.play(episodes=4, until=until, **rules, **await harness.stage(transport))
    assert (len(records), end.failures) == (8, 0)
    assert [line.split() for line in log.read_text().splitlines()] == [
        ["u1", str(trained), str(evaluations)]
        for trained, evaluations in [(1, 0), (2, 0), (2, 0), (2, 1), (3, 1), (4, 1), (4, 1), (4, 2)]
    ]
    assert [line.split()[:2] for line in asked.read_text().splitlines()][2:4] == [["4", "1"], ["5", "1"]]


WHERE = "until[0] (conditions_world:Bad)"


@WITH_TEXT
@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (rule("Bad", how="raises"), f"{WHERE}.episode_flow_control of episode 3: KeyError: 'gain' (conditions_world.py:"),
        (rule("Bad", how="exits"), f"{WHERE}.episode_flow_control of episode 3: SystemExit: 3 (conditions_world.py:"),
        (
            rule("Bad", how="answer"),
            f"{WHERE}.episode_flow_control of episode 3: ValueError: answered 'STOPP', which is none of CONTINUE, PAUSE, ",
        ),
        (rule("Bad", how="bool"), f"{WHERE}.episode_flow_control of episode 3: ValueError: answered True, which is none"),
        (rule("Bad", how="built"), f"{WHERE}: RuntimeError: not today (conditions_world.py:"),
        (rule("Bad"), f"{WHERE}: TypeError: Bad.__init__() missing 1 required positional argument: 'how'"),
        (
            rule("Mute"),
            "until[0] (conditions_world:Mute): has neither episode_flow_control nor phase_flow_control",
        ),
        (rule("Nobody"), "until[0] (conditions_world:Nobody): entry 'conditions_world:Nobody' does not load: Attrib"),
    ],
)  # fmt: skip
async def test_an_error_ends_the_phase_with_its_place_and_traceback(harness, transport, condition, reason):
    command = await harness.stage(transport)
    records, end = await harness.play(episodes=50, until=(condition,), **command)
    assert outcomes(records) in ([], ["terminated"] * 4)
    assert (end.end, end.failures) == ("stopped", 1)
    assert end.fault.startswith(reason), end.fault
    if "conditions_world.py" in reason:
        assert 'conditions_world.py", line' in end.traceback


async def test_nothing_is_built_for_a_phase_whose_condition_cannot_be_made(harness):
    built = harness.folder / "built"
    command = await harness.stage("in_process", entry="walk_world:Built", log=str(built))
    _, end = await harness.play(episodes=50, until=(rule("Bad", how="built"),), **command)
    assert (end.end, built.exists()) == ("stopped", False)


@WITH_TEXT
async def test_one_that_hangs_ends_the_phase_with_the_place_where_it_is(harness, monkeypatch, transport):
    monkeypatch.setattr(user_conditions, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(user_conditions, "CHECK_SECONDS", 0.05)
    command = await harness.stage(transport)
    _, end = await harness.play(episodes=50, until=(rule("Bad", how="hangs"),), **command)
    assert end.fault.startswith(
        f"{WHERE}.episode_flow_control of episode 3 hangs: no answer within 0.2 s (conditions_world.py:"
    )
    assert "time.sleep(1000)" in end.traceback


@pytest.mark.parametrize(
    ("answer", "flow"),
    [
        (None, "CONTINUE"),
        ("RESET", "RESET"),
        (("STOP_PHASE", {"mean": 1.0}), "STOP_PHASE"),
        ((None, None), "CONTINUE"),
        (import_module("enum").Enum("SimulationFlowControl", "CONTINUE RESTART").RESTART, "RESTART"),
    ],
)
def test_what_counts_as_an_answer(answer, flow):
    assert condition_objects.flow_of(answer) == flow


@pytest.mark.parametrize(
    "answer", ["", "stop_phase", 3, True, [], ("RESET",), ("RESET", 1, 2), object(), "x" * 999]
)
def test_what_does_not(answer):
    with pytest.raises(
        ValueError, match=r"^answered .{1,80}, which is none of CONTINUE, PAUSE, RESET, RESTART, "
    ):
        condition_objects.flow_of(answer)

"""What an agent is told of the steps and episodes of several workers: the same on every transport."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from governor.episodes.rules.seeds import episode_seed
from governor.messages import Evaluate
from tests.support.in_process_commands import outcomes

EACH = pytest.mark.parametrize("transport", ["conductors", "in_process", "vector", "rounds"])
BOTH = pytest.mark.parametrize("transport", ["conductors", "in_process"])
AGENTS = pytest.mark.parametrize("agent", ["streams_world:Witness", "streams_world:WitnessOfMany"])


@pytest.fixture
def tell(harness):
    """Plays, and returns the records, the end of the part, and what the agent was told, as tuples."""

    async def play(transport, agent="streams_world:Witness", *, made=None, size=4, pool=1, **more):
        log = harness.folder / "told"
        params = {"log": str(log), **more.pop("params", {})}
        made = {"entry": "streams_world:Telling", "agent": agent, "agent_params": params, **(made or {})}
        command = await harness.stage(transport, size=size, pool=pool, **made)
        records, end = await harness.play(**{"episodes": 9, **command, **more})
        lines = log.read_text().splitlines() if log.exists() else []
        return records, end, [tuple(json.loads(line)) for line in lines]

    return play


def of_kind(told, kind):
    return [rest for what, *rest in told if what == kind]


def streams(told):
    """For each worker what was told of it, in order."""
    found = defaultdict(list)
    for what, worker, *rest in told:
        if what != "rollout":
            found[worker].append((what, *rest))
    return found


@EACH
@AGENTS
async def test_each_stream_of_steps_is_unbroken(tell, transport, agent):
    workers = {"workers": 2, "pool": 2} if transport in {"conductors", "in_process"} else {}
    records, _, told = await tell(transport, agent, params={"needs_info": True}, **workers)
    assert outcomes(records) == ["terminated"] * 9
    by_episode = {record.index: record for record in records}
    count = 2 if workers else 4
    assert set(streams(told)) <= set(range(count))
    for worker, seen in streams(told).items():
        left = seen
        while left:
            begun, reset, *left = left
            number, seed = begun[1:3]
            record = by_episode.pop(number)
            assert (record.worker, record.seed) == (worker, seed)
            assert begun == ("begin", number, seed, count, True, 0, "train")
            assert reset == ("reset",)
            steps, ended, left = left[: record.steps], left[record.steps], left[record.steps + 1 :]
            assert [step[:4] for step in steps] == [("learn", number, n, seed) for n in range(record.steps)]
            assert all(after[4] == before[5] for before, after in pairwise(steps))
            assert {step[-1]["seed"] for step in steps} == {seed}
            assert ended == ("end", *begun[1:], "terminated", record.value, record.steps)
    assert by_episode == {}


@EACH
@pytest.mark.parametrize("wants_info", [True, False])
async def test_info_is_there_for_those_that_ask_for_it(tell, transport, wants_info):
    records, _, told = await tell(
        transport, params={"needs_info": wants_info}, episodes=2, info={"seed": "last"}
    )
    assert [record.metrics["seed"] for record in records] == [record.seed for record in records]
    seen = {tuple(step[-1]) for step in of_kind(told, "learn")}
    assert seen == ({("seed",)} if wants_info else {()})


@BOTH
async def test_info_that_was_not_asked_for_is_a_fault_that_says_how(tell, transport):
    records, _, _ = await tell(transport, "streams_world:Looks", episodes=1)
    assert outcomes(records) == ["failed"]
    assert (
        "agent.learn: KeyError: \"'lives': only agents with an attribute needs_info = True"
        in records[0].reason
    )


@EACH
async def test_an_agent_is_told_of_every_end(tell, transport):
    """Of a failed episode and of evaluations, too, and of each once."""
    made = {"fault_seed": episode_seed(7, 0, 1)}
    records, _, told = await tell(
        transport, made=made, episodes=4, evaluate=Evaluate(every=4, episodes=2), size=2
    )
    ends = {seen[1]: (seen[5], *seen[-3:]) for seen in of_kind(told, "end")}
    assert len(of_kind(told, "end")) == len(of_kind(told, "begin")) == 6
    assert ends == {
        record.index: (1 if record.index >= 4 else 0, record.outcome, record.value, record.steps)
        for record in records
    }
    assert [ends[1][1], ends[4][0]] == ["failed", 1]
    explored = {seen[1]: seen[4] for seen in of_kind(told, "begin")}
    assert [explored[index] for index in range(6)] == [True] * 4 + [False] * 2


@EACH
@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_each_begin_of_a_worker_comes_after_the_end_before_it(tell, transport, mode):
    _, _, told = await tell(transport, episodes=6, mode=mode, size=2)
    assert len(of_kind(told, "begin")) == 6
    for seen in streams(told).values():
        kinds = [what for what, *_ in seen if what in {"begin", "end"}]
        assert kinds == ["begin", "end"] * (len(kinds) // 2)


@EACH
@pytest.mark.parametrize(
    ("fault", "reason"), [("begin", "agent.begin: OSError: no pen"), ("end", "agent.end: OSError: no ink")]
)
async def test_an_error_is_the_fault_of_its_training_episode(tell, transport, fault, reason):
    records, _, _ = await tell(transport, params={"fault": fault}, episodes=3)
    assert outcomes(records) == ["failed"] * 3
    assert all(record.reason.startswith(reason) for record in records)


@EACH
async def test_an_error_at_the_end_of_an_evaluation_has_no_effect(tell, transport):
    records, end, told = await tell(transport, params={"fault": "end"}, episodes=3, mode="eval")
    assert (outcomes(records), end.failures) == (["terminated"] * 3, 0)
    assert len(of_kind(told, "end")) == 3


@pytest.mark.parametrize("transport", ["vector", "rounds"])
@AGENTS
async def test_a_vector_makes_rollouts_of_all_its_environments(tell, transport, agent):
    records, _, told = await tell(transport, agent, params={"rollout_steps": 4}, episodes=20)
    rollouts = of_kind(told, "rollout")
    assert outcomes(records) == ["terminated"] * 20
    whole = [shape for workers, shape in rollouts if workers == [0, 1, 2, 3]]
    assert whole[:4] == [[4, 4]] * 4
    learned = sum(record.steps for record in records)
    assert len(whole) * 16 <= learned < len(whole) * 16 + 2 * 16


@BOTH
async def test_several_workers_make_rollouts(tell, harness, transport):
    records, _, told = await tell(transport, workers=2, pool=2, params={"rollout_steps": 5}, episodes=30)
    rollouts = of_kind(told, "rollout")
    assert outcomes(records) == ["terminated"] * 30
    assert [[0, 1], [5, 2]] in rollouts
    steps = sum(len(workers) * 5 for workers, _ in rollouts)
    learned = sum(record.steps for record in records)
    assert learned - 2 * 5 * 2 < steps <= learned
    assert harness.state()["learned"] == learned


@EACH
async def test_an_error_of_a_rollout_is_the_fault_of_the_episode_that_completes_it(tell, transport):
    records, _, told = await tell(
        transport, params={"rollout_steps": 8, "fault": "learn_batch"}, episodes=8, size=1
    )
    failed = [record for record in records if record.outcome == "failed"]
    assert len(failed) == len(of_kind(told, "rollout")) > 1
    assert {record.reason.partition(" (")[0] for record in failed} == {"agent.learn: OSError: too many"}


async def test_a_learner_beside_the_actor_learns_rollouts_too(tell):
    records, _, told = await tell(
        "conductors", params={"rollout_steps": 5}, episodes=20, workers=2, pool=2, max_staleness=1
    )
    assert outcomes(records) == ["terminated"] * 20
    learned = sum(record.steps for record in records)
    assert learned - 20 < sum(len(workers) * 5 for workers, _ in of_kind(told, "rollout")) <= learned
    assert len(of_kind(told, "begin")) == len(of_kind(told, "end")) == 40, "both objects are told"
    assert len(of_kind(told, "reset")) == 20, "the actor alone has states"


@EACH
async def test_an_agent_of_one_stream_is_refused_where_there_are_more(tell, transport):
    workers = {"workers": 2, "pool": 2} if transport in {"conductors", "in_process"} else {}
    records, end, _ = await tell(transport, "streams_world:Alone", **workers)
    assert records == []
    assert "learns from one stream of steps (streams = 'one')" in end.fault


@BOTH
async def test_an_agent_of_one_stream_acts_in_many(tell, transport):
    records, _, _ = await tell(transport, "streams_world:Alone", workers=2, pool=2, mode="eval")
    assert outcomes(records) == ["terminated"] * 9


@BOTH
async def test_rollouts_need_a_number_of_steps(tell, transport):
    records, end, _ = await tell(transport, "streams_world:Unfinished")
    assert records == []
    assert "has learn_batch and no rollout_steps" in end.fault

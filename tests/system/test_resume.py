"""A failed run is resumed: finished tasks and episodes are kept with their values, failed and missing ones run."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from governor.errors import AlreadyEnded, ExitCode

pytestmark = pytest.mark.system


def marks(folder):
    """Number of starts of each task, in this run and those before it."""
    return {path.stem: path.read_text().count("x") for path in Path(folder).glob("*.starts")}


def tasks(flag):
    flaky = {"flag": str(flag)}
    return [
        {"id": "large", "call": "user_code:large"},
        {"id": "flaky", "call": "user_code:heal", "args": flaky, "repeat": 2},
        {
            "id": "slow",
            "call": "user_code:heal",
            "args": {**flaky, "how": "hang"},
            "repeat": 2,
            "timeout": 1.0,
        },
        {"id": "collect", "call": "user_code:collect", "depends_on": ["large", "flaky"]},
        {"id": "last", "call": "user_code:heal", "args": {**flaky, "how": "fail last"}, "repeat": 2},
    ]


@pytest.mark.long
@pytest.mark.ray
async def test_finished_tasks_are_not_repeated_and_their_values_reach_dependent_tasks(instance):
    flag = instance.folder / "healed"
    phases = [
        {"name": "first", "tasks": [{"id": "before", "call": "user_code:once"}]},
        {"name": "second", "tasks": tasks(flag), "failures": {"at_most": 2}},
        {"name": "third", "tasks": [{"id": "after", "call": "user_code:once"}]},
    ]
    async with instance.serve() as tree:
        uid = await tree.executor.submit({"name": "study", "phases": phases}, folder=instance.folder)
        others_ended = instance.folder / "healed.others_ended"
        waiting = {("large", 0), ("flaky", 0), ("flaky", 1), ("slow", 0), ("slow", 1), ("last", 0)}
        async for event in tree.executor.watch(uid):
            if event.kind == "task.ended":
                waiting.discard((event.data["record"]["task"], event.data["record"]["run"]))
                if not waiting:
                    others_ended.touch()
        _, old = await tree.end(uid)
        assert (old.outcome, [phase.name for phase in old.phases]) == ("failed", ["first", "second"])
        was = {(record.task, record.run): record.outcome for record in old.phases[1].tasks}
        assert was == {
            ("large", 0): "succeeded",
            ("flaky", 0): "succeeded",
            ("flaky", 1): "failed",
            ("slow", 0): "succeeded",
            ("slow", 1): "timed_out",
            ("collect", 0): "upstream_failed",
            ("last", 0): "succeeded",
            ("last", 1): "failed",
        }
        begun = marks(old.folder)
        assert begun == {"before": 1, "large": 1, "flaky": 2, "slow": 2, "last": 2}
    flag.touch()
    async with instance.serve() as tree:  # a resume needs only the journal and the folder of the old run
        new_uid = await tree.executor.resume(uid)
        events, new = await tree.end(new_uid)
        assert new.outcome == "finished", new.reason
        assert [phase.end for phase in new.phases] == ["tasks_done"] * 3
        records = {(record.task, record.run): record for phase in new.phases for record in phase.tasks}
        assert {record.outcome for record in records.values()} == {"succeeded"}
        assert len(records) == 10
        assert records["collect", 0].value == {"sum": sum(range(20_000)), "runs": [0, 1]}
        ended = [e.data["record"] for e in events if e.kind == "task.ended"]
        assert sorted((record["task"], record["run"]) for record in ended) == [
            ("after", 0),
            ("collect", 0),
            ("flaky", 1),
            ("last", 1),
            ("slow", 1),
        ]
        assert marks(new.folder) == {
            "before": 1,
            "large": 1,
            "flaky": 3,
            "slow": 3,
            "last": 3,
            "collect": 1,
            "after": 1,
        }
        assert marks(old.folder) == begun, "the old run stays as it is"
        assert await tree.executor.result(uid) == old
        [status] = (await tree.executor.status(new_uid)).runs
        assert status.parent == uid
        with pytest.raises(AlreadyEnded, match="nothing to resume"):
            await tree.executor.resume(new_uid)


@pytest.mark.long
async def test_finished_episodes_are_kept_and_the_agent_continues_with_its_state(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(entry="user_code:Pauses"), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        (instance.folder / "pause").touch()
        endpoint = ("--broker", tree.executor.endpoint)
        code, _, complaint = await instance.governor(*endpoint, "resume", uid)
        assert code == ExitCode.TRY_AGAIN
        assert f"run {uid} has not ended (it is running)" in complaint
        (instance.folder / "pause").unlink()
        await tree.executor.abort(uid)
        _, old = await tree.end(uid)
        kept = old.phases[0].episodes["terminated"]
        code, out, _ = await instance.governor(*endpoint, "resume", uid[:7], "--watch", "--json")
        assert code == ExitCode.DONE
        rows = [json.loads(row) for row in out.splitlines()]
        new, result = rows[0]["uid"], rows[-1]
        assert result["phases"][0]["episodes"] == {"terminated": 600}
        played = [row["data"]["episode"]["index"] for row in rows if row.get("kind") == "episode.ended"]
        assert len(played) == 600 - kept
        lines = (Path(result["folder"]) / "episodes" / "train.jsonl").read_text().splitlines()
        assert Counter(json.loads(line)["index"] for line in lines) == Counter(range(600))
        ready = [row["data"] for row in rows if row.get("kind") == "conductor.ready"]
        assert [data["detail"]["learned"] for data in ready if data["conductor"] == "agent.walker"] == [True]
        code, out, _ = await instance.governor(*endpoint, "results", new)
        assert f"resumes {uid}" in out
        assert (await instance.governor(*endpoint, "resume", new))[0] == ExitCode.USAGE
        assert (await instance.governor(*endpoint, "resume", "no-such-run"))[0] == ExitCode.NO_SUCH_RUN


@pytest.mark.long
async def test_a_daemon_killed_during_a_resume_loses_no_kept_episode(instance, walk):
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        await tree.executor.abort(uid)
        await tree.end(uid)
        new = await tree.executor.resume(uid, key="again")
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.process.wait()
    async with instance.serve() as tree:
        assert await tree.executor.resume(uid, key="again") == new
        await tree.until(new, "episode.ended")
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.process.wait()
    async with instance.serve() as tree:
        _, result = await tree.end(new)
    assert (result.outcome, result.parent) == ("finished", uid)
    lines = (Path(result.folder) / "episodes" / "train.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["index"] for line in lines) == Counter(range(600))


async def test_a_run_without_a_daemon_is_resumed_in_its_own_state_folder(instance, walk):
    file = instance.folder / "run.yaml"
    file.write_text(json.dumps(walk(restarts=0, entry="later:Walker", episodes=5)))
    (instance.folder / "later.py").write_text(
        "class Walker:\n    def __init__(self, **_):\n        raise OSError('no')\n    def act(self, observation, *, explore): ...\n"
    )
    instance.environ["XDG_STATE_HOME"] = str(instance.folder / "state")
    code, out, _ = await instance.governor("run", file, "--json")
    assert code == ExitCode.RUN_ENDED_BADLY
    old = json.loads(out.splitlines()[-1])
    (instance.folder / "later.py").write_text("from user_code import Walker\n")
    code, out, complaint = await instance.governor("run", "--resume", old["uid"][:6], "--json")
    assert code == ExitCode.DONE, complaint
    new = json.loads(out.splitlines()[-1])
    assert (new["outcome"], new["phases"][0]["episodes"]) == ("finished", {"terminated": 5})
    assert Path(new["folder"]).parent == Path(old["folder"]).parent
    assert new["uid"] != old["uid"]

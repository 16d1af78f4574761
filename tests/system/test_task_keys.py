"""A run file with every key of a phase of tasks, from the file to the result."""

from __future__ import annotations

import asyncio
import json
import re
import sys

import pytest

pytestmark = [pytest.mark.system, pytest.mark.ray]

RUN = """\
name: keys
models: [{url: "http://a"}]
phases:
  - name: learn
    max_repeat_per_runner: 2
    dynamic_timeout: &learned {ratio: 2.0, warmup_min_steps: 1, floor: 300ms}
    tasks:
      - {id: where, call: "user_code:where", repeat: 4}
      - {id: low, call: "user_code:where", depends_on: [where], priority: -1}
      - {id: high, call: "user_code:where", depends_on: [where], priority: 5}
  - name: late
    on_failure: continue
    grace: 100ms
    dynamic_timeout: *learned
    tasks: [{id: hung, call: "user_code:nap", args: {seconds: 600}, timeout: 1min}]
  - name: enough
    min_num: 2
    over_rollout: 0.25
    wait_after_min: 200ms
    tasks:
      - {id: quick, call: "user_code:where"}
      - {id: hung, call: "user_code:nap", args: {seconds: 600}, priority: -1}
      - {id: other, call: "user_code:where"}
"""


@pytest.mark.long
async def test_a_run_file_with_every_key_of_a_task_phase_is_played(instance):
    file = instance.folder / "run.yaml"
    file.write_text(RUN)
    instance.environ["XDG_STATE_HOME"] = str(instance.folder / "state")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor", "run", str(file), "--ray-cpus", "1", "--json"),
        env=instance.environ,
        cwd=instance.folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 0, complaint.decode()
    rows = [json.loads(line) for line in out.splitlines()]
    learn, late, enough = rows[-1]["phases"]
    assert [phase["end"] for phase in (learn, late, enough)] == ["tasks_done", "tasks_done", "enough"]
    assert {record["value"]["model"]["url"] for record in learn["tasks"]} == {"http://a"}
    [hung] = late["tasks"]
    assert hung["outcome"] == "timed_out"
    assert re.fullmatch(r"ran longer than its timeout of 0\.3 s \(user_code\.py:\d+\)", hung["error"])
    outcomes = {record["task"]: record["outcome"] for record in enough["tasks"]}
    assert outcomes == {"quick": "succeeded", "other": "succeeded", "hung": "cancelled"}
    ended = [row["data"]["record"]["task"] for row in rows if row.get("kind") == "task.ended"]
    assert ended.index("high") < ended.index("low")

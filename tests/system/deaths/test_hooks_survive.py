"""The daemon dies again and again while runs end and hooks are told: each is told at least once, under one key, and none too early."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress

import pytest

from governor.errors import GovernorError
from tests.support.hook_server import listening

KILLS = int(os.environ.get("GOVERNOR_TEST_KILLS", "12"))
pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300 + 20 * KILLS)]
TELL = ["sh", "-c", "{ cat; echo; } > $RUN.part; sleep 0.1; cat $RUN.part >> told"]
"""A line comes by one write: several programs tell at the same time."""


async def test_each_end_is_told_whenever_the_daemon_is_killed(instance, walk):
    chance, uids = random.Random(7), []  # a seed makes a failure come again
    made = walk(episodes=2)
    made["phases"][0]["simulate"]["transport"] = "in_process"
    async with listening() as server:
        made["hooks"] = {"on_end": TELL}
        path = instance.folder / "governor.toml"
        path.write_text(f'slots = 2\n[hooks]\non_end = "{server.url}"\n')
        for _ in range(KILLS):
            async with instance.serve("--config", str(path)) as tree:
                with suppress(GovernorError):
                    uids.append(await tree.executor.submit(made, folder=instance.folder))
                    uids.append(await tree.executor.submit(made, folder=instance.folder))
                await asyncio.sleep(chance.random() * 2)  # it dies at any moment
                os.kill(tree.daemon.pid, signal.SIGKILL)
                await tree.gone()
        async with instance.serve("--config", str(path)) as tree:
            async with asyncio.timeout(120 + 10 * KILLS):
                ended = {uid: await tree.executor.wait(uid) for uid in uids}

            def lines():
                return [
                    json.loads(line) for line in (instance.folder / "told").read_text().splitlines() if line
                ]

            async with asyncio.timeout(60):
                while True:
                    posted, told = server.got, lines()
                    if {each["run"] for each in posted} >= {*uids} <= {each["run"] for each in told}:
                        break
                    await asyncio.sleep(0.1)
    bad = [result.reason for result in ended.values() if result.outcome != "finished"]
    assert all("crashed 5 times in a row" in reason for reason in bad), (
        "a slow machine does too little in each life"
    )
    outcomes = {(uid, result.outcome) for uid, result in ended.items()}
    for documents in (posted, told):
        assert {(each["run"], each["outcome"]) for each in documents} == outcomes
        keys = Counter({(each["run"], each["key"]) for each in documents})
        assert len(keys) == len(uids), "one key for each"

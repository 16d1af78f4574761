"""Hooks of run file and daemon under a real daemon: told at least once, with one key each, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from tests.support.hook_server import listening

pytestmark = pytest.mark.system


def told(folder):
    file = folder / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until(is_so):
    async with asyncio.timeout(60):
        while True:
            if found := is_so():
                return found
            await asyncio.sleep(0.05)


async def until_told(folder, number):
    return await until(lambda: found if len(found := told(folder)) >= number else None)


async def until_logged(instance, text):
    return await until(lambda: log if text in (log := (instance.folder / "log").read_text()) else None)


TELL = [
    "sh",
    "-c",
    '{ cat; echo; } > $HOOK.part; echo "$RUN_NAME $OUTCOME $HOOK" > said; cat $HOOK.part >> told',
]
"""A line comes by one write, and last: several programs tell at the same time."""


async def test_the_end_of_a_run_is_told_to_a_command_and_an_url_after_it_is_on_record(instance, walk):
    async with listening() as server:
        path = instance.folder / "governor.toml"
        path.write_text(f'[hooks]\non_end = "{server.url}"\n')
        async with instance.serve("--config", str(path)) as tree:
            made = walk(episodes=3) | {"hooks": {"on_end": TELL}, "labels": {"team": "rl"}}
            uid = await tree.executor.submit(made, folder=instance.folder)
            events, result = await tree.end(uid)
            [document] = await until_told(instance.folder, 1)
            await server.until(len)
            [posted] = server.got
            assert (document["run"], document["name"], document["outcome"]) == (uid, "walk", "finished")
            assert (document["hook"], document["labels"]) == ("on_end", {"team": "rl"})
            assert document["metrics"]["return_mean"] == result.phases[0].metrics["return_mean"]
            assert document["key"] == f"{uid}-{events[-1].seq}-run"
            assert posted["key"] == f"{uid}-{events[-1].seq}-daemon"
            assert (instance.folder / "said").read_text() == "walk finished on_end\n"


async def test_what_fails_is_told_again_and_given_up_after_its_retries(instance, walk):
    async with listening() as server, instance.serve() as tree:
        server.status = 503
        hook = {"url": server.url, "retries": 1}
        made = walk(episodes=1) | {"hooks": {"on_end": hook}}
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.end(uid)
        await server.until(lambda got: len(got) == 2)
        assert len({each["key"] for each in server.got}) == 1
        log = await until_logged(instance, "hook.given_up")
        assert "answered 503: no room" in log
        [told] = (await tree.executor.result(uid)).hooks_failed
        assert told.startswith("on_end given up after 2 tries: ")
        assert "answered 503: no room" in told
        code, out, _ = await instance.governor("--broker", tree.executor.endpoint, "results", uid)
        assert (code, f"hook {told}" in out.replace("\n", " ")) == (0, True), out


async def test_a_program_that_hangs_ends_at_its_time_out_with_what_it_started(instance, walk):
    hook = {"command": ["sh", "-c", "sleep 1000 & sleep 1000"], "timeout": "1s", "retries": 0}
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            walk(episodes=1) | {"hooks": {"on_end": hook}}, folder=instance.folder
        )
        await tree.end(uid)
        await until_logged(instance, "took longer than its timeout of 1 s")
        assert not [each for each in instance.processes() if "sleep 1000" in each]


async def test_limits_stalls_and_deaths_are_told(instance, walk):
    hooks = dict.fromkeys(("on_end", "on_limit", "on_restart", "on_stall"), TELL)
    async with instance.serve() as tree:
        made = walk(entry="user_code:Sleeps", episodes=4) | {
            "hooks": hooks,
            "limits": {"stall_timeout": "1s", "episodes": 1},
        }
        uid = await tree.executor.submit(made, folder=instance.folder)
        await tree.until(uid, "run.stalled")
        os.kill(await tree.pid_of(uid, "simulation"), signal.SIGKILL)
        await tree.until(uid, "conductor.exited")
        (instance.folder / "awake").touch()
        assert (await tree.end(uid))[1].outcome == "failed"

        def all_told():
            found = told(instance.folder)
            return found if {each["hook"] for each in found} == {*hooks} else None

        documents = await until(all_told)  # it may stall again after the death
        [limit] = [each for each in documents if each["hook"] == "on_limit"]
        assert limit["data"]["limit"] == "episodes"


async def test_what_the_death_of_the_daemon_cuts_off_is_told_by_the_next_one(instance, walk):
    slow = [
        "sh",
        "-c",
        "cat > first; touch begun; until test -e go; do sleep 0.05; done; cat first >> told; echo >> told",
    ]
    async with instance.serve() as tree:
        uid = await tree.executor.submit(
            walk(episodes=1) | {"hooks": {"on_end": slow}}, folder=instance.folder
        )
        await tree.end(uid)
        await until((instance.folder / "begun").exists)
        os.kill(tree.daemon.pid, signal.SIGKILL)
        await tree.gone()
        assert told(instance.folder) == []
        (instance.folder / "go").touch()
        async with instance.serve():
            [document] = await until_told(instance.folder, 1)
            assert (document["run"], document["outcome"]) == (uid, "finished")

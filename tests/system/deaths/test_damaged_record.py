"""A journal with a damaged value: the daemon starts, holds and names that run, and continues the others."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

from governor.errors import ExitCode, GovernorError

pytestmark = pytest.mark.system


def damage(instance, change, uid):
    with contextlib.closing(sqlite3.connect(instance.folder / "s" / "governor.db")) as connection:
        assert connection.execute(change, (uid,)).rowcount == 1
        connection.commit()


@pytest.mark.long
async def test_status_names_the_run_with_a_damaged_value_and_other_runs_continue(instance, walk):
    async with instance.serve("--slots", "2") as tree:
        spoilt = await tree.executor.submit(walk(episodes=3), folder=instance.folder)
        await tree.end(spoilt)
        sound, bad = [await tree.executor.submit(walk(), folder=instance.folder) for _ in range(2)]
        for uid in (sound, bad):
            await tree.until(uid, "episode.ended")
        tree.daemon.kill()
        async with asyncio.timeout(30):
            await tree.process.wait()
    of_run = "run = (SELECT position FROM runs WHERE uid = ?)"
    damage(instance, f"UPDATE events SET data = x'c1' WHERE {of_run} AND last = 2", bad)
    damage(instance, "UPDATE runs SET spec = x'c1' WHERE uid = ?", spoilt)

    async with instance.serve("--slots", "2") as tree:
        _, result = await tree.end(sound)
        assert result.outcome == "finished"
        listed = {run.uid: run for run in (await tree.executor.list()).runs}
        assert {uid: run.state for uid, run in listed.items()} == {
            sound: "ended",
            bad: "damaged",
            spoilt: "ended",  # a list reads no run files
        }
        assert "its record is damaged (events, behind number 1: " in listed[bad].reason
        [shown] = (await tree.executor.status(spoilt)).runs
        assert shown.state == "damaged"
        assert "its record is damaged (runs.spec: " in shown.reason
        [held] = (await tree.executor.status()).runs
        assert held.uid == bad
        assert held.waits_for.startswith("an abort, or a journal that this daemon can read: events")
        with pytest.raises(GovernorError, match=f"the record of run {bad} is damaged") as caught:
            await tree.end(bad)
        assert caught.value.exit_code == ExitCode.INTERNAL
        await tree.executor.abort(bad)
        assert (await tree.executor.status()).runs == ()
        aborted = (await tree.executor.status(bad)).runs
        assert await tree.stop() == ExitCode.DONE
    async with instance.serve("--slots", "2") as tree:
        assert (await tree.executor.status(bad)).runs == aborted
        assert (aborted[0].state, aborted[0].outcome) == ("ended", "aborted")
        assert "; its record was damaged (events, behind number 1: " in aborted[0].reason

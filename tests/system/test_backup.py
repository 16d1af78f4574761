"""A backup is made while runs work; a daemon goes on from it, on the same machine, too."""

from __future__ import annotations

import contextlib

import pytest

from tests.system.conftest import Instance

pytestmark = pytest.mark.system


@contextlib.asynccontextmanager
async def restored(instance, file, name, *options):
    """A daemon of its own on what a backup holds."""
    other = Instance(instance.folder / name)
    other.folder.mkdir()
    code, _, told = await other.governor("restore", file, "--state-dir", other.folder / "s")
    assert code == 0, told
    async with other.serve(*options) as tree:
        yield tree
    assert other.processes() == []


async def events_of(tree, uid):
    return [event async for event in tree.executor.watch(uid, follow=False)]


async def test_a_run_goes_on_from_a_backup_while_the_daemon_that_was_copied_works(instance, walk):
    file = instance.folder / "backup.tar"
    async with instance.serve() as tree:
        uid = await tree.executor.submit(walk(entry="user_code:Pauses"), folder=instance.folder)
        await tree.until(uid, "episode.ended")
        (instance.folder / "pause").touch()
        acknowledged = await events_of(tree, uid)
        code, _, told = await instance.governor("backup", file, "--state-dir", instance.folder / "s")
        assert (code, "1 run, 1 of them not ended" in told) == (0, True), told
        simulation = await tree.pid_of(uid, "simulation")
        async with restored(instance, file, "other") as other:
            begun = await other.until(uid, "run.interrupted")
            assert begun.data["reason"].startswith("restored from the backup of ")
            assert await tree.pid_of(uid, "simulation") == simulation
            (instance.folder / "pause").unlink()
            events, result = await other.end(uid)
            assert events[: len(acknowledged)] == acknowledged
            assert (result.outcome, result.phases[0].episodes) == ("finished", {"terminated": 600})
        events, result = await tree.end(uid)
        assert (result.outcome, result.phases[0].episodes) == ("finished", {"terminated": 600})
        assert [event.kind for event in events].count("conductor.started") == 3  # nobody has killed one
    assert list((instance.folder / "s").glob(".backup-*")) == []


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_of_twenty_backups_under_load_each_is_gone_on_with(instance, walk):
    made = []
    async with instance.serve("--slots", "2") as tree:
        runs = [
            await tree.executor.submit({**walk(episodes=100_000), "seed": seed}, folder=instance.folder)
            for seed in (1, 2)
        ]
        for uid in runs:
            await tree.until(uid, "episode.ended")
        for number in range(20):
            known = {uid: await events_of(tree, uid) for uid in runs}
            file = instance.folder / f"{number}.tar"
            code, _, told = await instance.governor("backup", file, "--state-dir", instance.folder / "s")
            assert code == 0, told
            made.append((file, known))
        for uid in runs:
            await tree.executor.abort(uid)
            await tree.end(uid)
    for file, known in made:
        async with restored(instance, file, file.stem, "--slots", "2") as other:
            for uid, acknowledged in known.items():
                await goes_on(other, uid)
                await other.executor.abort(uid)
                events, result = await other.end(uid)
                assert events[: len(acknowledged)] == acknowledged
                played = [event.data["episode"]["index"] for event in events if event.kind == "episode.ended"]
                assert len(played) == len(set(played)) == sum(result.phases[0].episodes.values())


async def goes_on(tree, uid):
    """Returns when an episode has ended since the backup."""
    was_interrupted = False
    async with contextlib.aclosing(tree.executor.watch(uid)) as events:
        async for event in events:
            was_interrupted |= event.kind == "run.interrupted"
            if was_interrupted and event.kind == "episode.ended":
                return

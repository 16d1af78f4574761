"""The code that a run ran with: changes of it are told, and a copy of it does not change."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from governor.errors import UsageError
from governor.executor import Executor

pytestmark = pytest.mark.system

PLACE = """
import os, time
from pathlib import Path
from gymnasium import spaces

class Room:
    observation_space = action_space = spaces.Discrete(2)
    def reset(self, *, seed=None):
        while os.path.exists(os.environ["GATE"]):
            time.sleep(0.01)  # closed by a test
        return 0, {{}}
    def step(self, action):
        return 0, float({value}), True, False, {{}}

class Agent:
    def __init__(self, observation_space, action_space, seed):
        pass
    def act(self, observation, *, explore):
        return 0
"""


class Home:
    """A folder with the code of a run; `value` is the reward of its only step, or what raises."""

    def __init__(self, folder):
        self.folder, self.gate = folder / "home", folder / "gate"
        self.folder.mkdir()
        self.write("1")

    def write(self, value):
        (self.folder / "place.py").write_text(PLACE.format(value=value))

    def run(self, **more):
        simulate = {"environment": "room", "agents": ["agent"], "episodes": 2, "transport": "in_process"}
        return {
            "name": "place",
            "env": {"GATE": str(self.gate)},
            "conductors": {
                "environments": {"room": {"entry": "place:Room"}},
                "agents": {"agent": {"entry": "place:Agent"}},
            },
            "phases": [{"name": "play", "mode": "eval", "simulate": simulate}],
            **more,
        }


@pytest.fixture
def home(instance):
    return Home(instance.folder)


def value_of(result):
    return result.phases[0].metrics["return_mean"]


def environment_of(result):
    return json.loads((Path(result.folder) / "environment.json").read_text())


async def test_a_queued_run_tells_what_has_changed_and_a_copy_runs_what_was_submitted(instance, home):
    async with instance.serve() as tree:
        await tree.executor.drain()
        plain = await tree.executor.submit(home.run(), folder=home.folder)
        same = await tree.executor.submit(home.run(name="same"), folder=home.folder)
        copied = await tree.executor.submit(home.run(code="snapshot"), folder=home.folder)
        group = await tree.executor.submit_group(
            home.run(code="snapshot", matrix={"seed": [1, 2]}), folder=home.folder
        )
        home.write("2")
        await tree.executor.undrain()
        events, result = await tree.end(plain)
        [told] = [event.data for event in events if event.kind == "run.code_changed"]
        assert (told["since"], told["files"]) == ("it was submitted", ["place.py"])
        assert result.code_changed == ("place.py has changed since it was submitted",)
        assert value_of(result) == 2.0
        for uid in (copied, *group.runs):
            events, result = await tree.end(uid)
            assert (value_of(result), result.code_changed) == (1.0, ())
            assert environment_of(result)["code"] == events[0].data["code"]["digest"]
            assert environment_of(result)["copied_from"] == str(home.folder)
        code, out, _ = await instance.governor("--broker", tree.executor.endpoint, "watch", plain)
        assert code == 0, out
        assert "place.py has changed since it was submitted" in out
        assert (await tree.end(same))[1].code_changed  # as the first: the file is another one
        first, second = [Path((await tree.executor.result(uid)).folder) for uid in group.runs]
        assert (first / "code" / "place.py").samefile(second / "code" / "place.py")
    assert "run.code_changed" in (instance.folder / "log").read_text()


async def test_who_mends_the_code_and_resumes_is_told_which_files_are_others(instance, home):
    home.write("1 / 0")
    async with instance.serve() as tree:
        old, copied = [
            (await tree.end(await tree.executor.submit(home.run(**more), folder=home.folder)))[1]
            for more in ({}, {"code": "snapshot"})
        ]
        assert (old.outcome, copied.outcome) == ("failed", "failed")
        home.write("3")
        endpoint = ("--broker", tree.executor.endpoint)
        code, out, complaint = await instance.governor(*endpoint, "resume", old.uid)
        assert code == 0, complaint
        told = f"place.py has changed since run {old.uid} began"
        assert complaint.strip() == f"the code of the run: {told}"
        _, result = await tree.end(out.strip())
        assert (result.outcome, value_of(result), result.code_changed) == ("finished", 3.0, (told,))
        code, shown, _ = await instance.governor(*endpoint, "results", out.strip())
        assert f"code: {told}" in shown
        code, out, complaint = await instance.governor(*endpoint, "resume", copied.uid)
        assert (code, complaint) == (0, "")
        _, again = await tree.end(out.strip())
        assert "ZeroDivisionError" in again.reason
        assert (Path(again.folder) / "code" / "place.py").samefile(Path(copied.folder) / "code" / "place.py")


@pytest.mark.parametrize("resume", ["continue", "restart"])
async def test_a_copy_outlives_the_daemon_and_a_run_that_goes_on_tells_what_has_changed(
    instance, home, resume
):
    home.gate.touch()
    async with instance.serve("--slots", "2") as tree:
        uids = [
            await tree.executor.submit(home.run(resume=resume, code=code), folder=home.folder)
            for code in ("folder", "snapshot")
        ]
        for uid in uids:
            await tree.until(uid, "phase.started")
        environment = instance.folder / "s" / "runs" / uids[0] / "environment.json"
        while not environment.exists():  # it is written beside the run
            await tree.executor.status()
        tree.daemon.send_signal(signal.SIGKILL)
        await tree.gone()
    home.write("4")
    home.gate.unlink()
    async with instance.serve() as tree:
        (_, plain), (_, copied) = [await tree.end(uid) for uid in uids]
        assert (value_of(plain), value_of(copied)) == (4.0, 1.0)
        when = "it was submitted" if resume == "restart" else "it began"
        assert plain.code_changed == (f"place.py has changed since {when}",)
        assert copied.code_changed == ()


async def test_a_copy_may_take_longer_than_other_requests(instance, home):
    for number in range(3000):
        (home.folder / f"{number}.txt").touch()
    async with instance.serve() as tree:
        async with Executor(tree.executor.endpoint, timeout=0.2) as impatient:
            uid = await impatient.submit(home.run(code="snapshot"), folder=home.folder)
        assert value_of((await tree.end(uid))[1]) == 1.0


async def test_a_folder_that_is_too_large_to_be_copied_is_refused_and_nothing_is_left(instance, home):
    with (home.folder / "data.bin").open("wb") as file:
        file.truncate(101 << 20)
    async with instance.serve() as tree:
        with pytest.raises(
            UsageError, match=r"code: snapshot copies the folder .* of which data.bin has 105,906,176;"
        ):
            await tree.executor.submit(home.run(code="snapshot"), folder=home.folder)
        with pytest.raises(UsageError, match=r"of which data.bin has 105,906,176;"):
            await tree.executor.submit_group(
                home.run(code="snapshot", matrix={"seed": [1, 2]}), folder=home.folder
            )
        assert (await tree.executor.status()).runs == ()
        assert list((instance.folder / "s" / "runs").iterdir()) == []

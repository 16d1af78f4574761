"""A text environment in a process of its own: whatever it does, its caller goes on, and nothing of it is left."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from governor.episodes.text.environments import process as text_process
from governor.episodes.text.environments.environment import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentHung,
)
from governor.episodes.text.environments.process import TextProcess
from governor.processes.kill_ladder import GracePeriods
from tests.support.living import gone, lives
from tests.support.user_code import text_worlds

SECONDS = 20
SHORT = 0.3


@pytest.fixture
async def start():
    made = []

    async def begin(entry="tests.support.user_code.text_worlds:Corridor", **params):
        made.append(await TextProcess.started(entry, params, timeout=SECONDS))
        return made[-1]

    yield begin
    async with asyncio.TaskGroup() as group:
        for environment in made:
            group.create_task(environment.aclose())


async def test_an_episode_after_another_in_one_process(start):
    world = await start(length=2)
    for _ in range(2):
        assert await world.get_task_prompt(timeout=SECONDS) == text_worlds.PROMPT
        steps = [await world.step("a", key="k", timeout=SECONDS) for _ in range(2)]
        assert steps[1].terminated
        (pid,) = {step.info["pid"] for step in steps}
        assert psutil.Process(pid).ppid() == world.pid != os.getpid()


@pytest.mark.parametrize(
    "made",
    [text_worlds.Corridor, text_worlds.make, text_worlds.Corridor(length=1)],
    ids=["class", "function", "object"],
)
async def test_what_pickle_can_send(start, made):
    world = await start(made, **({} if isinstance(made, text_worlds.Corridor) else {"length": 1}))
    assert (await world.step("a", timeout=SECONDS)).terminated


def test_the_child_imports_nothing_heavy():
    code = """
    import sys
    import governor.episodes, governor.episodes.text.base_urls, governor.episodes.text.environments.child
    print({"openai", "aiohttp", "numpy", "gymnasium", "zmq", "pydantic", "structlog", "rich"} & set(sys.modules))
    """
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])}
    said = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], env=environ, text=True)
    assert said == "set()\n"


def test_a_class_of_the_users_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio
        from governor.episodes.text.environments.process import TextProcess

        class World:
            def get_task_prompt(self): return []
            def step(self, action): return 1.0, True, False, {"said": action}

        async def play():
            world = await TextProcess.started(World, timeout=20)
            print((await world.step("hello", timeout=20)).info)
            await world.aclose()

        if __name__ == "__main__":
            asyncio.run(play())
        """)
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])}
    ended = subprocess.run(
        [sys.executable, script], check=False, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("{'said': 'hello'}\n", "")


def test_what_is_defined_in_no_file_says_so():
    code = """
    import asyncio
    from governor.episodes.text.environments.process import NotSendable, TextProcess

    class World:
        def get_task_prompt(self): return []
        def step(self, action): return 1.0, True, False, {}

    async def play():
        for made in (World, World()):
            try:
                await TextProcess.started(made, timeout=20)
            except NotSendable as fault:
                print(fault.reason.partition(": ")[2])

    asyncio.run(play())
    """
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[5])}
    for arguments, text in ((["-c", textwrap.dedent(code)], None), (["-"], textwrap.dedent(code))):
        said = subprocess.check_output([sys.executable, *arguments], env=environ, text=True, input=text)
        assert said == "it is defined in no file; name it as 'module:Class'\n" * 2


async def test_what_cannot_be_sent_says_so(start):
    with pytest.raises(EnvironmentFault, match="name it as 'module:Class'"):
        await start(lambda: None)


async def test_values_of_numpy_and_others(start):
    world = await start()
    step = await world.step("numpy", timeout=SECONDS)
    assert (step.reward, step.terminated, step.truncated) == (0.5, True, False)
    assert step.info == {"seen": [0, 1, 2], "kinds": [1], "of": "<class 'object'>"}
    assert (await world.step("tuple", timeout=SECONDS)).truncated


@pytest.mark.parametrize(("action", "info"), [("keys", "{(1, 2): 3}"), ("circle", "{'info': {...}}")])
async def test_an_info_that_json_cannot_hold_is_its_text(start, action, info):
    step = await (await start()).step(action, timeout=SECONDS)
    assert (step.reward, step.info) == (1.0, info)


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("nan", "the reward is nan"),
        ("shape", "the reward is 'much'"),
        ("five", "is no mapping with reward"),
        ("raise", "step: ValueError: no such door"),
        ("exit", "step: SystemExit: 3"),
    ],
)
async def test_its_own_faults_leave_it_usable(start, action, said):
    world = await start()
    with pytest.raises(EnvironmentFault, match=said) as caught:
        await world.step(action, timeout=SECONDS)
    assert type(caught.value) is EnvironmentFault
    assert not world.broken
    assert (await world.step("a", timeout=SECONDS)).reward == 1.0


async def test_sync_code_runs_in_a_main_thread_without_event_loop(start):
    assert (await (await start()).step("asyncio", timeout=SECONDS)).reward == 1.0


async def test_what_it_prints_is_not_on_our_standard_output(start, capfd):
    world = await start()
    await world.step("print", timeout=SECONDS)
    await world.aclose()
    assert capfd.readouterr() == ("", "to standard output\n")


async def test_async_code_has_one_event_loop_that_goes_on_between_calls(start):
    world = await start("tests.support.user_code.text_worlds:Talker")
    assert len(await world.get_task_prompt(timeout=SECONDS)) == 3
    assert not (await world.step("a", timeout=SECONDS)).info["done"]
    assert (await world.step("wait", timeout=SECONDS)).info["done"]


@pytest.mark.parametrize(
    ("action", "said"),
    [("die", "exit code 5"), ("crash", "SIGSEGV"), ("fork", "exit code 6"), ("cut", "exit code 1")],
)
async def test_a_crash(start, action, said):
    world = await start()
    with pytest.raises(EnvironmentCrashed, match=f"step: its process ended with {said}"):
        await world.step(action, timeout=SECONDS / 4)
    with pytest.raises(EnvironmentFault, match=f"is broken: step: its process ended with {said}"):
        await world.get_task_prompt(timeout=SECONDS)


@pytest.mark.parametrize("action", ["hang", "gil"])
async def test_a_hang_is_killed(start, action):
    world = await start()
    pid = world.pid
    with pytest.raises(EnvironmentHung, match=r"step: no answer within 0\.3 s"):
        await world.step(action, timeout=SHORT)
    await gone(pid)
    assert "no answer" in world.broken


async def test_an_async_hang_is_killed(start):
    world = await start("tests.support.user_code.text_worlds:Talker")
    with pytest.raises(EnvironmentHung):
        await world.step("hang", timeout=SHORT)
    await gone(world.pid)


async def test_a_cancelled_call_kills_it_too(start):
    world = await start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT):
            await world.step("hang", timeout=SECONDS)
    await gone(world.pid)
    assert world.broken == "step was cancelled; its process is killed"


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("raise", EnvironmentFault, "start: OSError: no disk"),
        ("exit", EnvironmentFault, "start: SystemExit: 4"),
        ("die", EnvironmentCrashed, "start: its process ended with exit code 4"),
        ("well", EnvironmentFault, "a Bad has no get_task_prompt, step"),
    ],
)
async def test_one_that_does_not_start(start, how, kind, said):
    with pytest.raises(EnvironmentFault, match=said) as caught:
        await start("tests.support.user_code.text_worlds:Bad", how=how)
    assert type(caught.value) is kind


async def test_one_that_hangs_at_its_start():
    with pytest.raises(EnvironmentHung, match=r"start: no answer within 0\.3 s"):
        await TextProcess.started("tests.support.user_code.text_worlds:Bad", {"how": "hang"}, timeout=SHORT)


async def test_an_entry_that_is_none(start):
    with pytest.raises(EnvironmentFault, match="start: entry 'nowhere:X' does not load"):
        await start("nowhere:X")


async def test_it_may_close_itself(start, tmp_path):
    world = await start(folder=str(tmp_path))
    pids = {world.pid, (await world.step("a", timeout=SECONDS)).info["pid"]}
    await world.aclose()
    assert int((tmp_path / "closed").read_text()) in pids
    assert not any(lives(pid) for pid in pids)
    await world.aclose()
    with pytest.raises(EnvironmentFault, match="is closed"):
        await world.step("a", timeout=SECONDS)


async def test_the_close_is_bounded(start):
    world = await start()
    pid = world.pid
    await world.step("stubborn", timeout=SECONDS)
    async with asyncio.timeout(SECONDS):
        await world.aclose()
    assert not lives(pid)


async def test_its_threads_do_not_hold_the_close(start, monkeypatch):
    world = await start()
    await world.step("thread", timeout=SECONDS)
    monkeypatch.setattr(text_process, "GRACE", GracePeriods(ask=10 * SECONDS))
    async with asyncio.timeout(SECONDS):
        await world.aclose()


@pytest.mark.parametrize("action", ["child", "stranger"])
async def test_its_descendants_go_with_it(start, action):
    world = await start()
    child = (await world.step(action, timeout=SECONDS)).info["child"]
    assert lives(child)
    await world.aclose()
    await gone(child)


async def test_its_group_goes_when_it_is_killed(start):
    world = await start()
    child = (await world.step("child", timeout=SECONDS)).info["child"]
    os.kill(world.pid, signal.SIGKILL)
    await gone(child)


async def test_it_dies_with_its_parent_even_when_it_hangs(tmp_path):
    code = """
    import asyncio
    from governor.episodes.text.environments.process import TextProcess

    async def play():
        world = await TextProcess.started("tests.support.user_code.text_worlds:Corridor", timeout=20)
        print(world.pid, flush=True)
        await world.step("gil", timeout=1000)

    asyncio.run(play())
    """
    root = Path(__file__).parents[5]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    parent = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [sys.executable, "-c", textwrap.dedent(code)], env=environ, stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await gone(pid)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_no_descriptor_and_no_task_is_left(start):
    world = await start()
    await world.aclose()
    gc.collect()  # what tests before this one have dropped
    before, tasks = descriptors(), len(asyncio.all_tasks())
    for action in ("a", "die", "hang"):
        world = await start()
        with contextlib.suppress(EnvironmentFault):
            await world.step(action, timeout=SHORT)
        await world.aclose()
    assert descriptors() <= before
    assert len(asyncio.all_tasks()) <= tasks


async def test_it_works_in_the_folder_of_the_process_that_starts_it(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = await start()
    [worker] = psutil.Process(world.pid).children()
    assert Path(worker.cwd()) == tmp_path

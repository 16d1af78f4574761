"""What runners print: whole, in lines that say to which run of which task they belong; near runners and those of other nodes."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.tasks.runner_world import open_world

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["near", "far"])
async def printing(request, harness, tmp_path_factory):
    """A far runner's spools are read by the agent of its node."""
    folder = tmp_path_factory.mktemp("run")
    async with open_world(harness.cluster, folder, unix=request.param == "near", prints=True) as world:
        if request.param == "far":
            (world.runners._folder / world.runners._marker).unlink()
        world.is_far = request.param == "far"
        yield world


def of(work, *, stream="stdout"):
    return lambda line: line.task == work.task and line.stream == stream


async def test_all_that_a_task_prints_is_there_and_bears_its_run(printing):
    runner = await printing.ready()
    work = printing.work("printing_deeds:speak", runs=(0, 1), attempt=3, task="t speaks")
    printing.runners.send(runner, [work])
    await printing.over(runner, work)
    await printing.until_printed(lambda line: line.text == "part t speaks.1")
    for run in (0, 1):
        name = f"t speaks.{run}"
        lines = [line for line in printing.printed if line.text.endswith(name)]
        assert {(line.task, line.run, line.attempt) for line in lines} == {("t speaks", run, 3)}
        assert {line.pid for line in lines} == {printing.runners.pid(runner)}
        assert {line.text for line in lines if line.stream == "stdout"} == {
            f"{kind} {name}" for kind in ("print", "raw", "puts", "child", "part")
        }
        errors = {line.text: (line.level, line.logger) for line in lines if line.stream == "stderr"}
        assert errors.pop(f"error {name}") == ("", "")
        assert errors.pop(f"logged {name}") == ("warning", "mine")
        assert errors.pop(f"context {name}") == ("debug", "context")
        [(warning, about)] = errors.items()
        assert f"UserWarning: warned {name}" in warning
        assert about == ("warning", "py.warnings")
    assert {bool(line.node) for line in printing.printed} == {printing.is_far}
    printing.give_back(runner)


async def test_raw_parts_of_lines_are_of_the_run_that_wrote_them(printing):
    runner = await printing.ready()
    works = [
        printing.work(f"printing_deeds:{call}", runs=(0, 1)) for call in ("raw_part", "be_silent", "raw_part")
    ]
    printing.runners.send(runner, works)
    await printing.over(runner, works[-1])
    await printing.until_printed(lambda line: line.text == f"part {works[-1].task}.1")
    parts = [(line.text, line.task, line.run) for line in printing.printed if line.text.startswith("part t")]
    assert [part for part in parts if part[1] in {work.task for work in works}] == [
        (f"part {work.task}.{run}", work.task, run) for work in (works[0], works[2]) for run in (0, 1)
    ]
    printing.give_back(runner)


async def test_a_line_is_there_within_a_second_while_its_task_holds_the_lock(printing, tmp_path):
    runner = await printing.ready(fresh=True)
    work = printing.work("printing_deeds:hang", args={"text": "so far", "note": str(tmp_path / "note")})
    printing.runners.send(runner, [work])
    await printing.begun(runner, work)
    [line] = await printing.until_printed(lambda line: line.text == "python so far")
    assert time.time() - line.at < 5, "seconds on a busy machine"
    assert line.task == work.task
    printing.runners.kill(runner, "enough")
    await printing.gone(runner)
    [line] = await printing.until_printed(lambda line: line.text == "so far")
    assert (line.task, line.run) == (work.task, 0)


async def test_of_a_killed_runner_all_is_there_and_no_file_is_left(printing, tmp_path):
    folder = printing.runners._spools
    for number in range(3):
        runner = await printing.ready(fresh=True)
        note = tmp_path / f"note{number}"
        work = printing.work("printing_deeds:hang", args={"text": f"cut {number}", "note": str(note)})
        printing.runners.send(runner, [work])
        await printing.until_printed(lambda line, text=f"python cut {number}": line.text == text)
        async with asyncio.timeout(10):
            while not note.exists():  # noqa: ASYNC110  # files tell nobody
                await asyncio.sleep(0.01)
        os.kill(printing.runners.pid(runner), 9)
        await printing.gone(runner)
        [line] = await printing.until_printed(lambda line, number=number: line.text == f"cut {number}")
        assert line.task == work.task
        pid = line.pid
        await printing.until_printed(
            lambda _, pid=pid: not list(Path(folder).glob(f"*@{pid}-*")) or printing.is_far
        )


async def test_a_gigabyte_is_bounded_and_its_last_line_is_there(printing):
    runner = await printing.ready()
    work = printing.work("printing_deeds:shout", args={"lines": 1_000_000})
    printing.runners.send(runner, [work])
    await printing.over(runner, work)
    await printing.until_printed(lambda line: line.text == "the last line")
    mine = [line for line in printing.printed if line.task == work.task or line.dropped]
    assert sum(line.dropped[0] for line in mine if line.dropped) > 100_000
    printing.give_back(runner)

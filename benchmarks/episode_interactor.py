"""Episodes of a language model: 64 at once beside the same client's bare loop, and memory over 10,000 of them.

The bare loop asks the same model as often and does nothing else: no environment, no records. The server of both, and of
the environments over HTTP, is a process of its own. `python benchmarks/episode_interactor.py` takes about 40 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
from rows import Row, p50, spread, table
from text_server import ANSWER_SECONDS, PROMPT, STEPS

from governor.episodes.actor_pool import ActorPool, Site
from governor.episodes.interactor import Interactor
from governor.episodes.llm import Answer, ChatModel, StaticBaseURLProvider
from governor.episodes.sessions import DataManager
from governor.episodes.text_environment import TextStep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

AT_ONCE = 64
REPETITIONS = 3
EPISODES = 10_000
WARM = 2_000
"""Episodes before memory is weighed for the first time."""


class InProcess:
    """An environment in the event loop itself: what is left is the cost of the Interactor."""

    def __init__(self, steps: int) -> None:
        self._steps, self._taken = steps, 0

    async def get_task_prompt(self, *, timeout: float) -> list[dict[str, Any]]:  # noqa: ARG002, ASYNC109
        return PROMPT

    async def step(self, action: str, *, key: str, timeout: float) -> TextStep:  # noqa: ARG002, ASYNC109
        self._taken += 1
        return TextStep(1.0, self._taken % self._steps == 0, False, {})

    async def aclose(self) -> None: ...


class Parrot:
    """A model that costs nothing."""

    async def answer(
        self,
        messages: list[dict[str, Any]],  # noqa: ARG002
        *,
        session: Any,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
    ) -> Answer:
        return Answer("north", "stop", 7, 5, 2)


@contextlib.contextmanager
def _server() -> Iterator[str]:
    program = [sys.executable, str(Path(__file__).with_name("text_server.py"))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


@contextlib.asynccontextmanager
async def _player(
    tasks: Any, make_site: Callable[[], Site], llm: str, folder: str, model: Any = None
) -> AsyncIterator[Interactor]:
    async def site() -> Site:
        return make_site()

    pool = ActorPool(tasks, site, pool_size=AT_ONCE)
    manager = DataManager(Path(folder))
    interactor = Interactor(pool, StaticBaseURLProvider(llm), "k", "m", manager, chat_model=model)
    try:
        yield interactor
    finally:
        await interactor.aclose()
        await pool.aclose()
        manager.close()


async def _bare(model: ChatModel) -> float:
    async def ask(answers: int) -> None:
        for _ in range(answers):
            await model.answer(PROMPT, session=None)

    await asyncio.gather(*(ask(1) for _ in range(AT_ONCE)))  # connections are open
    began = perf_counter()
    await asyncio.gather(*(ask(STEPS) for _ in range(AT_ONCE)))
    return AT_ONCE * STEPS / (perf_counter() - began)


async def _played(make_site: Callable[[], Site], llm: str, model: ChatModel, begin: int) -> float:
    tasks = [("walk", str(begin + n), "g") for n in range(AT_ONCE)]
    with tempfile.TemporaryDirectory() as folder:
        async with _player(tasks, make_site, llm, folder, model) as interactor:
            began = perf_counter()
            result = await interactor.run_all_environments()
            seconds = perf_counter() - began
    if set(result.values()) != {float(STEPS)}:
        raise RuntimeError(f"not all were played to the end: {result}")
    return AT_ONCE * STEPS / seconds


async def _at_once() -> list[Row]:
    figures: dict[str, list[float]] = {"bare": [], "in process": [], "over HTTP": []}
    with _server() as url:
        llm = f"{url}/v1"
        model = ChatModel(
            model="m", base_url_provider=StaticBaseURLProvider(llm), api_key="k", concurrency=AT_ONCE
        )
        for turn in range(REPETITIONS):
            figures["bare"].append(await _bare(model))
            figures["in process"].append(
                await _played(lambda: Site("inproc", None, InProcess(STEPS)), llm, model, turn * AT_ONCE)
            )
            figures["over HTTP"].append(await _played(lambda: Site("http", url), llm, model, turn * AT_ONCE))
        await model.aclose()
    bare = figures.pop("bare")
    what = f"{AT_ONCE} LLM episodes at once, {ANSWER_SECONDS * 1000:.0f} ms an answer"
    rows = [
        Row(
            what=f"{what}: the client's bare loop",
            figure=p50(bare),
            unit="answers/s",
            note=spread(bare, "answers/s"),
        )
    ]
    for name, found in figures.items():
        ratios = [one / other for one, other in zip(found, bare, strict=True)]
        rows.append(
            Row(
                what=f"{what}: Interactor, environments {name}",
                figure=p50(ratios),
                unit="of the bare loop",
                at_least=0.9,
                note=f"{p50(found):.0f} answers/s, recorded; {spread(ratios, 'of it')}",
                if_missed="the cores are used up: two requests more for each answer, and their server",
            )
        )
    return rows


async def _memory() -> list[Row]:
    marks: dict[int, int] = {}
    process = psutil.Process()

    def tasks() -> Iterator[tuple[str, str, str]]:
        for number in range(EPISODES):
            if number == WARM:
                gc.collect()
                marks[number] = process.memory_info().rss
            yield "walk", str(number), "g"

    with tempfile.TemporaryDirectory() as folder:
        make_site = lambda: Site("inproc", None, InProcess(3))  # noqa: E731
        async with _player(tasks(), make_site, "http://unused", folder, Parrot()) as interactor:
            began = perf_counter()
            await interactor.run_all_environments()
            seconds = perf_counter() - began
            gc.collect()
            grown = process.memory_info().rss - marks[WARM]
    return [
        Row(
            what=f"memory grown over {EPISODES - WARM:,} text episodes after the first {WARM:,}",
            figure=grown / 2**20,
            unit="MB",
            at_most=10.0,
            note=f"the records of the episodes included; {EPISODES / seconds:,.0f} episodes/s of 3 steps, recorded",
        )
    ]


async def _measure() -> list[Row]:
    return [*await _at_once(), *await _memory()]


def measure() -> list[Row]:
    return asyncio.run(_measure())


if __name__ == "__main__":
    print(table(measure()))

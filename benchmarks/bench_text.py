"""Language models in text environments, beside the bare `openai` client: `python benchmarks/bench_text.py`, about a minute.

The model is a server in a process of its own, and so are environments over HTTP. All sides keep 64 questions on their way, on
the same aiohttp transport, and take turns; the bare loop neither retries, nor checks, nor plays, nor records.
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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import openai
import psutil
from support.rows import Row, p50, spread, table
from support.text_server import ANSWER_SECONDS, PROMPT, STEPS

from governor import logs
from governor.episodes.text.actor_pool import ActorPool, EnvironmentEndpoint
from governor.episodes.text.base_urls import SessionSuffixBaseURLProvider, StaticBaseURLProvider
from governor.episodes.text.chat_model import Answer, ChatModel
from governor.episodes.text.environments.environment import TextStep
from governor.episodes.text.interactor import Interactor
from governor.episodes.text.sessions import DataManager

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    Task = tuple[str, str, str]
    MakeEndpoint = Callable[[], EnvironmentEndpoint]

AT_ONCE = 64
TURNS = 3
EPISODES = 10_000
SESSIONS = 6_400
WARM = 2_000
"""Episodes, or sessions, before memory is weighed for the first time."""
CORES = "the cores are used up by client and server"


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

    async def answer(self, *_: Any, **__: Any) -> Answer:
        return Answer("north", "stop", 7, 5, 2)


@contextlib.contextmanager
def server(seconds: float) -> Iterator[str]:
    """The address of one whose model takes so long."""
    program = [sys.executable, str(Path(__file__).parent / "support" / "text_server.py"), str(seconds)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]


@contextlib.asynccontextmanager
async def player(
    tasks: Iterable[Task], make_endpoint: MakeEndpoint, model: Any, **more: Any
) -> AsyncIterator[Interactor]:
    async def site() -> EnvironmentEndpoint:
        return make_endpoint()

    with tempfile.TemporaryDirectory() as folder:
        pool = ActorPool(tasks, site, pool_size=AT_ONCE)
        manager = DataManager(Path(folder))
        provider = StaticBaseURLProvider("http://unused")
        interactor = Interactor(pool, provider, "k", "m", manager, chat_model=model, **more)
        try:
            yield interactor
        finally:
            await interactor.aclose()
            await pool.aclose()
            manager.close()


async def loops(ask: Callable[[], Awaitable[object]], each: int) -> float:
    """Answers in a second of `AT_ONCE` loops with so many questions."""

    async def loop() -> None:
        for _ in range(each):
            await ask()

    began = perf_counter()
    await asyncio.gather(*(loop() for _ in range(AT_ONCE)))
    return AT_ONCE * each / (perf_counter() - began)


async def played(make_endpoint: MakeEndpoint, model: ChatModel) -> float:
    """Answers in a second of `AT_ONCE` episodes."""
    tasks = [("walk", str(number), "g") for number in range(AT_ONCE)]
    async with player(tasks, make_endpoint, model) as interactor:
        began = perf_counter()
        result = await interactor.run_all_environments()
        seconds = perf_counter() - began
    if set(result.values()) != {float(STEPS)}:
        raise RuntimeError(f"not all were played to the end: {result}")
    return AT_ONCE * STEPS / seconds


async def side_by_side(seconds: float, *, episodes: bool) -> dict[str, list[float]]:
    """Answers in a second: of the bare client, of ours, and with `episodes` of both kinds of them."""
    found: dict[str, list[float]] = {"bare": [], "asked": [], "in process": [], "over HTTP": []}
    with server(seconds) as url:
        model = ChatModel(
            model="m", base_url_provider=StaticBaseURLProvider(f"{url}/v1"), concurrency=AT_ONCE
        )
        client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="EMPTY", max_retries=0, http_client=openai.DefaultAioHttpClient()
        )

        async def bare() -> None:
            await client.chat.completions.create(model="m", temperature=0.3, messages=PROMPT)  # type: ignore[arg-type]

        async def ours() -> None:
            await model.answer(PROMPT, session=None)

        await loops(bare, 1)  # connections are open
        await loops(ours, 1)
        for _ in range(TURNS):
            found["bare"].append(await loops(bare, STEPS))
            found["asked"].append(await loops(ours, STEPS))
            if not episodes:
                continue
            found["in process"].append(
                await played(lambda: EnvironmentEndpoint("inproc", None, InProcess(STEPS)), model)
            )
            found["over HTTP"].append(await played(lambda: EnvironmentEndpoint("http", url), model))
        await client.close()
        await model.aclose()
    return found


async def throughput() -> list[Row]:
    slow = await side_by_side(ANSWER_SECONDS, episodes=True)
    fast = await side_by_side(0.0, episodes=False)
    what = f"{AT_ONCE} LLM episodes at once, {ANSWER_SECONDS * 1000:.0f} ms an answer"

    def ratio(of: dict[str, list[float]], name: str, what: str, aim: float | None = 0.9) -> Row:
        ratios = [one / bare for one, bare in zip(of[name], of["bare"], strict=True)]
        return Row(
            what=what,
            figure=p50(ratios),
            unit="x bare openai",
            at_least=aim,
            note=f"{p50(of[name]):,.0f} answers/s; {spread(ratios, 'x')}",
            if_missed=CORES,
        )

    most = AT_ONCE / ANSWER_SECONDS
    return [
        Row(
            what=f"{AT_ONCE} questions at once: the bare openai client",
            figure=p50(slow["bare"]),
            unit="answers/s",
            note=f"{spread(slow['bare'], 'answers/s')}; {most:.0f} is all there is",
        ),
        ratio(slow, "in process", f"{what}, environments in process"),
        ratio(slow, "over HTTP", f"{what}, environments over HTTP (2 requests more)"),
        ratio(fast, "asked", f"{AT_ONCE} questions at once, a model that answers at once"),
    ]


async def memory_of_episodes() -> Row:
    marks: list[int] = []
    process = psutil.Process()

    def tasks() -> Iterator[Task]:
        for number in range(EPISODES):
            if number == WARM:
                gc.collect()
                marks.append(process.memory_info().rss)
            yield "walk", str(number), "g"

    async with player(
        tasks(), lambda: EnvironmentEndpoint("inproc", None, InProcess(3)), Parrot()
    ) as interactor:
        began = perf_counter()
        await interactor.run_all_environments()
        seconds = perf_counter() - began
        gc.collect()
        grown = process.memory_info().rss - marks[0]
    return Row(
        what=f"memory that an episode leaves behind, over {EPISODES - WARM:,} of them",
        figure=grown / (EPISODES - WARM) / 1024,
        unit="kB",
        at_most=1.0,
        note=f"its record in the result included; {EPISODES / seconds:,.0f} episodes/s of 3 steps, recorded",
    )


async def memory_of_sessions() -> Row:
    """Sessions that each have a base URL of their own."""
    process = psutil.Process()
    numbers = iter(range(WARM + SESSIONS))
    with server(0.0) as url:
        provider = SessionSuffixBaseURLProvider(f"{url}/v1")
        model = ChatModel(model="m", base_url_provider=provider, concurrency=AT_ONCE)

        async def ask() -> None:
            await model.answer(PROMPT, session=SimpleNamespace(id=f"s{next(numbers)}"))

        await loops(ask, WARM // AT_ONCE)
        gc.collect()
        before = process.memory_info().rss
        await loops(ask, SESSIONS // AT_ONCE)
        gc.collect()
        grown = process.memory_info().rss - before
        await model.aclose()
    return Row(
        what=f"memory after {SESSIONS:,} sessions, each with its own base URL",
        figure=grown / 1e6,
        unit="MB more",
        at_most=5.0,
        note="a client for each: 0.9 MB and 28 ms each",
    )


async def rows() -> list[Row]:
    return [*await throughput(), await memory_of_episodes(), await memory_of_sessions()]


def measure() -> list[Row]:
    logs.configure(log_format="console", level="warning")
    return asyncio.run(rows())


if __name__ == "__main__":
    print(table(measure()))

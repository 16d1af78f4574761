"""Questions to a model, ours beside the bare `openai` client, in one run: `python benchmarks/episode_llm.py`, about 40 s.

The server has a process of its own and answers after 200 ms; both sides keep 64 requests on their way, on the same aiohttp
transport, and take turns. The bare loop neither retries, nor checks, nor counts.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
from rows import Row, p50, spread, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

AT_ONCE = 64
REQUESTS = 1_280
TURNS = 3
SESSIONS = 10_000
ANSWER_SECONDS = 0.2
MESSAGES = [
    {"role": "system", "content": "You walk over a frozen lake. " * 20},
    {"role": "user", "content": "Where now: left, right, up or down?"},
]


async def serve(seconds: float) -> None:
    """A model that takes so long for each answer. Prints its port."""
    from aiohttp import web

    message = {"role": "assistant", "content": "left"}
    answer = {
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 130, "completion_tokens": 1, "total_tokens": 131},
    }  # fmt: skip

    async def respond(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(seconds)
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/{path:.*}", respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def server(seconds: float) -> Iterator[str]:
    """The base URL of such a server."""
    process = subprocess.Popen([sys.executable, __file__, str(seconds)], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"  # type: ignore[union-attr]
    finally:
        process.kill()
        process.communicate()


async def loops(ask: Callable[[int], Awaitable[Any]], number: int) -> float:
    """Seconds for `number` questions, asked by `AT_ONCE` loops that each wait for their answer."""
    numbers = iter(range(number))

    async def loop() -> None:
        for each in numbers:
            await ask(each)

    began = perf_counter()
    await asyncio.gather(*(loop() for _ in range(AT_ONCE)))
    return perf_counter() - began


class Sides:
    """Ours and theirs, at one server."""

    def __init__(self, url: str) -> None:
        import openai

        from governor.episodes.llm import ChatModel, SessionSuffixBaseURLProvider

        self.ours = ChatModel(
            model="m", base_url_provider=SessionSuffixBaseURLProvider(url), concurrency=AT_ONCE
        )
        self.theirs = openai.AsyncOpenAI(
            base_url=url, api_key="EMPTY", max_retries=0, http_client=openai.DefaultAioHttpClient()
        )

    async def ask_ours(self, number: int) -> None:
        await self.ours.answer(MESSAGES, session=SimpleNamespace(id=f"s{number}"))

    async def ask_theirs(self, _: int) -> None:
        await self.theirs.chat.completions.create(model="m", temperature=0.3, messages=MESSAGES)  # type: ignore[arg-type]

    async def turns(self, number: int) -> tuple[list[float], list[float]]:
        """Answers in a second of both."""
        await loops(self.ask_ours, AT_ONCE)
        await loops(self.ask_theirs, AT_ONCE)
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            for side, ask in enumerate((self.ask_ours, self.ask_theirs)):
                rates[side].append(number / await loops(ask, number))
        return rates

    async def close(self) -> None:
        await self.ours.aclose()
        await self.theirs.close()


async def throughput() -> list[Row]:
    with server(ANSWER_SECONDS) as url:
        sides = Sides(url)
        slow = await sides.turns(REQUESTS)
        await sides.close()
    with server(0.0) as url:
        sides = Sides(url)
        fast = await sides.turns(REQUESTS)
        await sides.close()
    return [
        Row(
            what=f"{AT_ONCE} questions at once, a model that answers in {ANSWER_SECONDS * 1000:.0f} ms",
            figure=p50(slow[0]) / p50(slow[1]),
            unit="x bare openai",
            at_least=0.9,
            note=f"{spread(slow[0], 'answers/s')}; {AT_ONCE / ANSWER_SECONDS:.0f} is all there is",
        ),
        Row(
            what=f"{AT_ONCE} questions at once, a model that answers at once",
            figure=p50(fast[0]) / p50(fast[1]),
            unit="x bare openai",
            at_least=0.9,
            note=spread(fast[0], "answers/s"),
        ),
    ]


async def memory() -> Row:
    """Of a process, for sessions that each have a base URL of their own."""
    own = psutil.Process()
    with server(0.0) as url:
        sides = Sides(url)
        await loops(sides.ask_ours, SESSIONS // 10)
        gc.collect()
        before = own.memory_info().rss
        await loops(sides.ask_ours, SESSIONS)
        gc.collect()
        grown = own.memory_info().rss - before
        await sides.close()
    return Row(
        what=f"memory after {SESSIONS:,} sessions, each with its own base URL",
        figure=grown / 1e6,
        unit="MB more",
        at_most=5.0,
        note="a client for each: 0.9 MB and 28 ms each",
    )


async def rows() -> list[Row]:
    return [*await throughput(), await memory()]


def measure() -> list[Row]:
    return asyncio.run(rows())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve(float(sys.argv[1])))
    else:
        print(table(measure()))

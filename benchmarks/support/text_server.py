"""Text environments of `STEPS` steps and a language model that takes so many seconds: `text_server.py 0.2`.

Prints its port when it is ready, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

from aiohttp import web

STEPS = 20
ANSWER_SECONDS = 0.2
PROMPT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "where to?"}]
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "weight_version": 7,
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "north"}}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}
taken: Counter[str] = Counter()


async def prompt(_: web.Request) -> web.Response:
    return web.json_response(PROMPT)


async def step(request: web.Request) -> web.Response:
    key = request.match_info["id"]
    await request.json()
    taken[key] += 1
    ended = taken[key] >= STEPS
    if ended:
        del taken[key]
    return web.json_response({"reward": 1.0, "terminated": ended, "truncated": False, "info": {}})


async def complete(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(float(sys.argv[1]))
    return web.json_response(ANSWER)


async def main() -> None:
    app = web.Application()
    app.router.add_get("/{name}/{id}/get_task_prompt", prompt)
    app.router.add_post("/{name}/{id}/step", step)
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_post("/v1/{session}/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

"""An OpenAI-compatible server, ``POST /v1/chat/completions``, in place of a language model: it reads the conversation, and
guesses the middle of what is still possible.
"""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from time import time

from aiohttp import web
from serving import serve


def answer(messages: list[dict[str, str]]) -> str:
    """The next guess after this conversation."""
    bounds = re.search(r"from (\d+) to (\d+)", messages[0]["content"])
    if bounds is None:
        return "I do not know this game."
    low, high = map(int, bounds.groups())
    for mine, theirs in pairwise(messages):
        if mine["role"] != "assistant":
            continue
        guess = int(mine["content"])
        if theirs["content"] == "Higher.":
            low = max(low, guess + 1)
        elif theirs["content"] == "Lower.":
            high = min(high, guess - 1)
    return str((low + high) // 2)


async def complete(request: web.Request) -> web.Response:
    asked = await request.json()
    text = answer(asked["messages"])
    prompt_tokens = sum(len(message["content"].split()) for message in asked["messages"])
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return web.json_response(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": int(time()),
            "model": asked["model"],
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 1,
                "total_tokens": prompt_tokens + 1,
            },
        }
    )


def application() -> web.Application:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    return app


if __name__ == "__main__":
    asyncio.run(serve(application()))

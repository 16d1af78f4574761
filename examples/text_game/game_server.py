"""Guess a number from 1 to 100: text environments over HTTP, one for each id.

``GET /{name}/{id}/get_task_prompt`` gives chat messages, the whole game so far; ``POST /{name}/{id}/step {"action": TEXT}``
what the guess was worth. An answer to a step repeats its ``Idempotency-Key``, and the same key gets the same answer: so a
step that got lost on the way may safely be sent again.
"""

from __future__ import annotations

import asyncio
from typing import Any
from zlib import crc32

from aiohttp import web
from serving import serve

HIGHEST = 100
RULES = f"I think of a number from 1 to {HIGHEST}. Guess it: answer with a number alone."


class Game:
    def __init__(self, env_id: str) -> None:
        self._number = 1 + crc32(env_id.encode()) % HIGHEST
        self._messages = [{"role": "system", "content": RULES}, {"role": "user", "content": "Your guess?"}]
        self._key: str | None = None
        self._answer: dict[str, Any] = {}

    def prompt(self) -> list[dict[str, str]]:
        return self._messages

    def step(self, action: str, key: str | None) -> dict[str, Any]:
        if key is None or key != self._key:
            self._key, self._answer = key, self._judge(action)
        return self._answer

    def _judge(self, action: str) -> dict[str, Any]:
        guess = int(action) if action.strip().isdecimal() else None
        found = guess == self._number
        if guess is None:
            said = "That is no number."
        else:
            said = "Yes!" if found else "Higher." if guess < self._number else "Lower."
        self._messages += [{"role": "assistant", "content": action}, {"role": "user", "content": said}]
        return {"reward": float(found), "terminated": found, "truncated": False, "info": {"said": said}}


class Games:
    """The games that are on; one that is over begins anew with its next prompt."""

    def __init__(self) -> None:
        self._games: dict[str, Game] = {}
        self._over: set[str] = set()

    async def prompt(self, request: web.Request) -> web.Response:
        env_id = request.match_info["id"]
        if env_id in self._over or env_id not in self._games:
            self._games[env_id] = Game(env_id)
            self._over.discard(env_id)
        return web.json_response(self._games[env_id].prompt())

    async def step(self, request: web.Request) -> web.Response:
        env_id, key = request.match_info["id"], request.headers.get("Idempotency-Key")
        game = self._games.get(env_id)
        if game is None:
            raise web.HTTPNotFound(text="ask for the prompt first")
        answer = game.step((await request.json())["action"], key)
        if answer["terminated"]:
            self._over.add(env_id)
        return web.json_response(answer, headers={"Idempotency-Key": key} if key else None)


def application() -> web.Application:
    games, app = Games(), web.Application()
    app.router.add_get("/{name}/{id}/get_task_prompt", games.prompt)
    app.router.add_post("/{name}/{id}/step", games.step)
    return app


if __name__ == "__main__":
    asyncio.run(serve(application()))

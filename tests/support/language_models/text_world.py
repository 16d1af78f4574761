"""A server of text environments and of a language model, over real HTTP on the loopback.

The name of an environment selects its behaviour; `steps` has every step that the server executed, with its key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from types import SimpleNamespace

from aiohttp import web

SYSTEM = {"role": "system", "content": "be brief"}


class TextWorld:
    """`hold` is set when the world closes: requests that are never answered wait for it."""

    def __init__(self):
        self.steps = defaultdict(list)
        self.calls = defaultdict(int)
        self.asked = []
        self.authorizations = set()
        self.arrived = asyncio.Event()
        self.hold = asyncio.Event()
        self.together = self.most = 0
        self.length = 3
        self.answer_seconds = 0.0
        self.answer = lambda messages: {}
        self.gate = None

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/{name}/{id}/get_task_prompt", self._prompt)
        app.router.add_post("/{name}/{id}/step", self._step)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/{session}/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        self.llm = f"{self.url}/v1"
        return self

    async def __aexit__(self, *_):
        self.hold.set()
        await self._runner.cleanup()

    async def _prompt(self, request):
        name, key = request.match_info["name"], self._key(request)
        self.calls[name, "prompt"] += 1
        if name == "mute":
            await self._never()
        if name == "gone":
            return web.Response(status=404)
        if name == "flaky" and self.calls[name, "prompt"] % 3:
            return web.Response(status=500)
        if name == "garbled":
            return web.Response(text="[{", content_type="application/json")
        if name == "brief" and len(self.steps[key]) == 2:
            return web.json_response([])
        turns = [{"role": "user", "content": f"turn {n}"} for n in range(10)]
        return web.json_response([SYSTEM, *turns])

    async def _step(self, request):
        name, key = request.match_info["name"], self._key(request)
        body = await request.json()
        self.steps[key].append(
            SimpleNamespace(action=body["action"], key=request.headers.get("Idempotency-Key"))
        )
        number = len(self.steps[key])
        if name == "sticky" and number == 2:
            await self._never()
        if name == "torn":
            request.transport.close()
        if name == "ill":
            return web.Response(status=500)
        ends = name not in {"endless", "brief"} and number >= self.length
        return web.json_response(
            {
                "reward": 1.0,
                "terminated": ends and name != "cut",
                "truncated": ends and name == "cut",
                "info": {"n": number},
            }
        )

    async def _complete(self, request):
        body = await request.json()
        self.asked.append((request.path, body))
        self.authorizations.add(request.headers["Authorization"])
        self.together += 1
        self.most = max(self.most, self.together)
        self.arrived.set()
        try:
            if self.gate is not None:
                await self.gate(body)
            await asyncio.sleep(self.answer_seconds)
        finally:
            self.together -= 1
        made = {"text": "go", "finish": "stop", "status": 200, "version": 7} | self.answer(body["messages"])
        if made["status"] != 200:
            return web.json_response({"error": {"message": "no"}}, status=made["status"])
        choice = {
            "index": 0,
            "finish_reason": made["finish"],
            "message": {"role": "assistant", "content": made["text"]},
        }
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        answer = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        return web.json_response(answer | {"weight_version": made["version"]})

    async def _never(self):
        self.arrived.set()
        await self.hold.wait()

    @staticmethod
    def _key(request):
        return f"{request.match_info['name']}_{request.match_info['id']}"


class Notes:
    """A user's data manager, with only the methods and arguments that every data manager has."""

    def __init__(self):
        self.rows = []
        self.sessions = []

    def create_session(self, *, env_id, env_name, llm_model, group_id):
        session = SimpleNamespace(
            env=f"{env_name}_{env_id}", llm_model=llm_model, group_id=group_id, total_reward=0.0
        )
        self.sessions.append(session)
        return session

    def record_step(
        self,
        *,
        session,
        step_id,
        messages,
        response,
        step_reward,
        env_state,
        terminated,
        truncated,
        is_trainable,
    ):
        session.total_reward += step_reward
        row = dict(locals(), env=session.env)
        self.rows.append(SimpleNamespace(**{name: row[name] for name in row if name != "self"}))


@contextlib.asynccontextmanager
async def closing(*things):
    async with contextlib.AsyncExitStack() as stack:
        for thing in things:
            stack.push_async_callback(thing.aclose)
        yield things

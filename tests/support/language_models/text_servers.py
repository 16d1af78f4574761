"""Real HTTP servers on loopback, of a model and of text environments, that answer correctly or with the fault that a test sets."""

from __future__ import annotations

import asyncio
import json
from collections import deque

from aiohttp import web


class Server:
    """`then(500, "late")` sets the answers of the next requests; later requests are answered correctly.

    A number is a status (or ``(status, headers)``); "malformed" JSON; "nothing": the connection is closed; "empty":
    status 200; "half" an answer; "late": after the client has gone; "drip": endless; "garbage": no HTTP; bytes or any other
    JSON value: that body, status 200.
    """

    def __init__(self):
        self.requests = []
        self.arrivals = asyncio.Queue()
        self.at_once = self.most_at_once = 0
        self._orders = deque()
        self._over = asyncio.Event()

    async def __aenter__(self):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_):
        self._over.set()
        await self._runner.cleanup()

    def then(self, *orders):
        self._orders.extend(orders)

    async def respond(self, request, body):
        """The correct answer to one request."""
        raise NotImplementedError

    async def _serve(self, request):
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.raw_path, request.headers.copy(), body))
        self.arrivals.put_nowait(request.raw_path)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._obey(self._orders.popleft() if self._orders else None, request, body)
        finally:
            self.at_once -= 1

    async def _obey(self, order, request, body):
        if order is None:
            return await self.respond(request, body)
        if isinstance(order, int | tuple):
            status, headers = (order, {}) if isinstance(order, int) else order
            return web.json_response({"error": {"message": f"told {status}"}}, status=status, headers=headers)
        if isinstance(order, str):
            return await getattr(self, f"_{order}")(request, body)
        data = order if isinstance(order, bytes) else json.dumps(order).encode()
        return web.Response(body=data, content_type="application/json")

    async def _malformed(self, *_):
        return web.Response(body=b'{"choices": [', content_type="application/json")

    async def _empty(self, *_):
        return web.Response(body=b"")

    async def _nothing(self, request, _):
        request.transport.close()
        return web.Response()

    async def _garbage(self, request, _):
        request.transport.write(b"this is no HTTP\r\n\r\n")
        request.transport.close()
        return web.Response()

    async def _late(self, *_):
        await self._over.wait()
        return web.Response(status=503)

    async def _half(self, request, body):
        whole = await self.respond(request, body)
        response = web.StreamResponse(headers={"Content-Length": str(len(whole.body))})
        await response.prepare(request)
        await response.write(whole.body[: len(whole.body) // 2])
        request.transport.close()
        return response

    async def _drip(self, request, _):
        response = web.StreamResponse()
        await response.prepare(request)
        while not self._over.is_set() and not request.transport.is_closing():
            try:
                await response.write(b" ")
                await asyncio.wait_for(self._over.wait(), 0.02)
            except (TimeoutError, ConnectionError):
                continue
        return response


class ChatServer(Server):
    """A model that always answers `text`."""

    def __init__(self, text="left", *, hold=None, **fields):
        super().__init__()
        self.text = text
        self.fields = fields
        self.headers = {}
        self.hold = hold

    async def respond(self, request, body):
        if self.hold is not None:
            await self.hold.wait()
        return web.json_response(completion(self.text, **self.fields), headers=self.headers)


def completion(text="left", *, finish_reason="stop", **fields):
    message = {"role": "assistant", "content": text}
    return {
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}, **fields,
    }  # fmt: skip


class EnvironmentServer(Server):
    """Environments at any name and id: `length` steps of reward 1. `steps` has each action that was executed.

    With `honours_keys` a repeated step receives the same answer again.
    """

    def __init__(self, *, length=3, honours_keys=False):
        super().__init__()
        self.steps = []
        self._length = length
        self._honours_keys = honours_keys
        self._answers = {}
        self._done = {}

    async def _obey(self, order, request, body):
        if request.method == "POST" and order not in (None, "half"):
            self._stepped(request, body)  # a lost answer does not undo it: keys exist for that
        response = await super()._obey(order, request, body)
        if self._honours_keys and not response.prepared:
            response.headers["Idempotency-Key"] = request.headers.get("Idempotency-Key", "")
        return response

    async def respond(self, request, body):
        if request.method == "POST":
            return web.json_response(self._stepped(request, body))
        return web.json_response([{"role": "system", "content": "play"}, {"role": "user", "content": "go"}])

    def _stepped(self, request, body):
        key = request.headers.get("Idempotency-Key")
        if self._honours_keys and key in self._answers:
            return self._answers[key]
        self.steps.append(body["action"])
        place = request.raw_path.rpartition("/")[0]
        self._done[place] = self._done.get(place, 0) + 1
        over = self._done[place] >= self._length
        answer = {"reward": 1.0, "terminated": over, "truncated": False, "info": {"step": self._done[place]}}
        self._answers[key] = answer
        return answer

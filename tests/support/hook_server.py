"""A server that hooks of runs are posted to."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web


class Server:
    """Keeps what is posted; answers with `status`."""

    def __init__(self):
        self.got = []
        self.status = 200
        self.arrived = asyncio.Condition()

    async def take(self, request):
        body = await request.json()
        assert request.headers["Idempotency-Key"] == body["key"]
        self.got.append(body)
        async with self.arrived:
            self.arrived.notify_all()
        return web.Response(status=self.status, text="no room")

    async def until(self, is_so):
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: is_so(self.got))


@contextlib.asynccontextmanager
async def listening():
    server = Server()
    app = web.Application()
    app.router.add_post("/hook", server.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield server
    finally:
        await runner.cleanup()

"""A small HTTP server on loopback, at the port that is its argument; without one at any that is free: then it prints its address,
and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web


async def serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    await web.TCPSite(runner, "127.0.0.1", port).start()
    if port:
        await asyncio.Event().wait()  # until it is killed
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()

"""A small HTTP server on loopback: prints its address when it is up, and ends when its standard input does."""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web


async def serve(app: web.Application) -> None:
    """The port is the first argument of the command line; without it any that is free."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()

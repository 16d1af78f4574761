"""A line that is slow and breaks: a relay of TCP in a process of its own, which may be in another network.

Each piece takes 20 ms, one of 50 takes 200 ms more, as a packet that was lost; every second or so all connections are broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

DELAY, LOST, LOSS = 0.02, 0.2, 0.02
BREAK_SECONDS = 1.5


class Relay:
    """`inside`: the words before a command that runs where the relay is to be. `breaks` counts broken connections, once it is over."""

    def __init__(self, inside, to):
        self._words = (*inside, sys.executable, __file__, to[0], str(to[1]))
        self.breaks = 0

    async def __aenter__(self):
        self._process = await asyncio.create_subprocess_exec(
            *self._words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self.address = (await self._process.stdout.readline()).decode().strip()
        return self

    async def __aexit__(self, *_):
        self._process.stdin.close()
        output, _ = await self._process.communicate()
        self.breaks = int(output)


async def _pass_on(reader, writer):
    dice = random.Random(7)
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            await asyncio.sleep(DELAY + (LOST if dice.random() < LOSS else 0))
            writer.write(data)
            await writer.drain()
    writer.close()


async def _main(host, port):
    lines, breaks = set(), 0

    async def relay(reader, writer):
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        lines.add(writer)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        lines.discard(writer)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    sys.stdout.write("{}:{}\n".format(*server.sockets[0].getsockname()))
    sys.stdout.flush()
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not (await asyncio.wait({over}, timeout=BREAK_SECONDS))[0]:
        for writer in [*lines]:
            writer.transport.abort()
            breaks += 1
    sys.stdout.write(str(breaks))
    server.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))

"""One try to tell a hook: the document goes to a program's standard input, or is posted to an URL. Each returns what went wrong, "" for nothing.

Rules:
1. A try ends within its time-out, with all that its program has started in its process group.
2. What a program prints and what a server answers is read in a bounded size, and told only where the try has failed.
3. A server is not followed elsewhere: a redirect is a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from governor.errors import text_of
from governor.failures import signal_name
from governor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRACE_SECONDS: Final = 2.0
"""From SIGTERM to SIGKILL."""
KEPT_BYTES: Final = 2_000
LONGEST: Final = 300
"""Characters of an error."""


async def run(command: Sequence[str], document: Mapping[str, Any], *, folder: str, timeout: float) -> str:  # noqa: ASYNC109  # of the whole try
    """With the variables RUN, RUN_NAME, HOOK, and OUTCOME at the end of a run."""
    told = {"RUN": document["run"], "RUN_NAME": document["name"], "HOOK": document["hook"]}
    told |= {"OUTCOME": document["outcome"]} if document.get("outcome") else {}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder if os.path.isdir(folder) else "/",  # noqa: ASYNC240, PTH112  # at once
            env={**os.environ, **told},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"cannot start {command[0]}: {getattr(error, 'strerror', None) or text_of(error)}"
    try:
        async with asyncio.timeout(timeout):
            last = await _talk(process, _encoded(document))
            code = await process.wait()
    except TimeoutError:
        return f"{command[0]} took longer than its timeout of {timeout:g} s"
    finally:
        await _end(process)
    if code == 0:
        return ""
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return _short(f"{command[0]} {how}{f': {last}' if last else ''}")


async def _talk(process: asyncio.subprocess.Process, data: bytes) -> str:
    """Writes its input; returns the last line of its output."""
    kept = b""

    async def write() -> None:
        assert process.stdin is not None  # noqa: S101  # as it was started
        with contextlib.suppress(ConnectionError):  # it does not read it
            process.stdin.write(data)
            await process.stdin.drain()
        process.stdin.close()

    writing = asyncio.create_task(write(), name="hook.input")
    try:
        assert process.stdout is not None  # noqa: S101  # likewise
        while portion := await process.stdout.read(KEPT_BYTES):
            kept = (kept + portion)[-KEPT_BYTES:]
    finally:
        writing.cancel()
        await asyncio.wait({writing})
    lines = kept.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Of its whole group."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
                return


async def post(url: str, document: Mapping[str, Any], *, timeout: float) -> str:  # noqa: ASYNC109  # of the whole try
    """With the header Idempotency-Key. Errors name the server alone: the rest of an URL may be a secret."""
    where = urlsplit(url).hostname or "the server"
    aiohttp = await asyncio.to_thread(import_module, "aiohttp")
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": str(document["key"]),
        "User-Agent": f"run-governor/{__version__}",
    }
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session,
            session.post(url, data=_encoded(document), headers=headers, allow_redirects=False) as answer,
        ):
            if 200 <= answer.status < 300:
                return ""
            said = (await answer.content.read(KEPT_BYTES)).decode(errors="replace")
            return _short(f"{where} answered {answer.status}{f': {said}' if said.strip() else ''}")
    except TimeoutError:
        return f"{where} took longer than its timeout of {timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return _short(f"{where} can't be reached: {text_of(error)}")


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode()


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"

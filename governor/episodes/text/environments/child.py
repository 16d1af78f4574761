"""The process of one text environment: `python -m governor.episodes.text.environments.child FD PARENT`, started by `process`.

It reads the order and then calls from FD, one at a time, and writes one JSON answer for each: ``{"value": ...}`` or
``{"fault": "one line", "traceback": "..."}``, with what was ``reported`` since the last one. It exits without the interpreter's clean-up,
which threads of user code could block. It imports nothing of the side that starts it, which would cost each environment time and memory.

User code runs in a fork, below a `supervisor`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import socket
import sys
import threading
from contextlib import suppress
from functools import cache
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any, Final

from governor.episodes.context import reports, with_context
from governor.episodes.entries import load
from governor.episodes.metrics import Reported
from governor.failures import reason_of
from governor.message_stream import MessageStream, StreamClosed, framed
from governor.output import capture
from governor.output.attribution import Attribution
from governor.processes import supervisor

if TYPE_CHECKING:
    from governor.episodes.context import Context

STEP_NAMES = ("reward", "terminated", "truncated", "info")
_playing: Final = [(-1, Reported())]
"""The index of the episode, negative before the first one, and what is reported for it."""


def main() -> None:
    """Serves until the socket ends, or `close`."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # to a file it would come in blocks
    supervisor.fork(parent=int(sys.argv[2]), descriptor=int(sys.argv[1]))
    capture.capture_as_told()
    attribution = Attribution()
    _bind_reports()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        sock.set_inheritable(False)
        os.register_at_fork(after_in_child=sock.close)
        requests = MessageStream(sock, max_bytes=sys.maxsize, blocking=True)
        environment: Any = None
        with suppress(StreamClosed):  # the parent is gone
            while (order := requests.wait_message(pickle.loads))[0] != "close":
                if order[0] == "begin":
                    attribution.begin(**order[1])
                    _playing[:] = [(order[1].get("episode", -1), _playing[0][1])]
                    continue
                reported: dict[str, Any] = {}
                try:
                    if environment is None:
                        environment = _make(*order)
                        answer: Any = callable(getattr(environment, "reset", None))
                    else:
                        answer = call(environment, *order)
                    reported = _take_reported()
                    sums = json.dumps(reported.get("reported", {})).encode()
                    data = b'{"value": %s, "reported": %s}' % (encoded(answer), sums)
                except BaseException as error:  # noqa: BLE001 - user code: whatever it raises is its fault, SystemExit too
                    reason = reason_of(error)
                    fault = {"fault": reason, "traceback": reason.traceback}
                    data = json.dumps(fault | (reported or _take_reported())).encode()
                capture.flush()
                sock.sendall(framed(data))
        close = getattr(environment, "close", None)
        if callable(close):
            with suppress(Exception):  # the environment is discarded: an error of its close has no effect
                _finished(close())
    _leave()


def _bind_reports() -> None:
    reports.bind(lambda: _playing)


def _take_reported() -> dict[str, Any]:
    """What user code has reported since the last answer, other threads too."""
    reported = _playing[0][1]
    reports.finish(reported)
    sums = reports.take(reported)
    return {} if sums is None else {"reported": sums}


def _make(pickled: bytes, script: dict[str, Any], context: Context | None, phase: str) -> Any:
    reports.phase = phase
    if script:
        spawn.prepare(script)
    made, params = pickle.loads(pickled)  # noqa: S301 - from the parent
    return make(made, params, context)


def make(made: Any, params: dict[str, Any], context: Context | None = None) -> Any:
    """The environment, as `TextProcess.started` has it. Raises what its code raises, ConductorError if that does not load, and TypeError."""
    if isinstance(made, str):
        made = load(made)
    if isinstance(made, type) or not hasattr(made, "step"):
        made = made(**with_context(made, params, context))
    missing = [name for name in ("get_task_prompt", "step") if not callable(getattr(made, name, None))]
    if missing:
        raise TypeError(f"a {type(made).__name__} has no {', '.join(missing)}")
    return made


def call(environment: Any, name: str, *arguments: Any) -> Any:
    """The result of its method, sync or async, `shaped`. Raises what the method raises."""
    return shaped(name, _finished(begun(environment, name, *arguments)))


def begun(environment: Any, name: str, *arguments: Any) -> Any:
    """What its method returns: an awaitable if it is async."""
    if name == "reset":
        return environment.reset(seed=arguments[0])
    return getattr(environment, name)(*arguments)


def shaped(name: str, value: Any) -> Any:
    """The result of its method as `encoded` takes it. Raises ValueError for bytes that are no JSON."""
    if name == "reset":
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return json.loads(bytes(value))
    if name == "step" and isinstance(value, tuple) and len(value) == len(STEP_NAMES):
        return dict(zip(STEP_NAMES, value, strict=True))
    return value


def encoded(value: Any) -> bytes:
    """JSON. An `info` that JSON cannot hold (keys that are no text, circles) becomes its text. Raises TypeError, ValueError and
    RecursionError.
    """
    try:
        return json.dumps(value, default=plain).encode()
    except (TypeError, ValueError, RecursionError):
        if not isinstance(value, dict) or "info" not in value:
            raise
        return json.dumps({**value, "info": repr(value["info"])}, default=plain).encode()


def _finished(value: Any) -> Any:
    """The result of an async method; its event loop runs on between calls, so that its tasks do."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    return asyncio.run_coroutine_threadsafe(wait(), _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.call_soon(_bind_reports)
    threading.Thread(target=loop.run_forever, name="event loop", daemon=True).start()
    return loop


def plain(value: Any) -> Any:
    """Converts values that JSON does not know: numpy's, torch's and pydantic's to Python's, the rest to text."""
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, set | frozenset) else repr(value)


def _leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

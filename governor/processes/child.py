"""The child's side of `process.start`: the one target that every child process runs.

Rules:
* The process marks itself before anything else.
* The target is named, and imported here: the daemon never imports it, hence neither Ray nor user code.
* The process exits by `os._exit`: no thread, finalizer or executor can delay that.
* Exit code: what the target returns (None is 0); a target that raises or cannot be imported ends in 70, with its
  traceback on stderr.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from governor.errors import ExitCode
from governor.processes import forkserver, kill_tree, prctl, preload

if TYPE_CHECKING:
    import socket

    from aiomultiprocess.types import Unit


async def run_target(target: str, payload: bytes, connection: socket.socket | None) -> int | None:
    """Imports `module:function` and awaits it with the payload, and with the connection if there is one."""
    module, _, function = target.partition(":")
    more = [] if connection is None else [connection]
    code: int | None = await getattr(import_module(module), function)(payload, *more)
    return code


def enter(unit: Unit) -> NoReturn:
    """Replaces aiomultiprocess' own `run_async`, which has no exit code and joins threads at the end."""
    code: int = ExitCode.INTERNAL
    try:
        prctl.name_process(multiprocessing.current_process().name)
        kill_tree.mark_self(unit.kwargs.pop("mark"))
        give_up_protection()
        if unit.kwargs.pop("starts_processes"):
            keep_copy()
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        code = loop.run_until_complete(unit.target(*unit.args, **unit.kwargs)) or 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - the last frame of the process: it is printed, and is the exit code
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # its reader is gone
        os._exit(code & 0xFF)


def give_up_protection(file: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Where memory is short the kernel spares the daemon (`OOMScoreAdjust=` of its unit), and not what it has started."""
    with suppress(OSError):
        if int(file.read_text()) < 0:
            file.write_text("0")


def keep_copy() -> None:
    """Keeps a copy of this process as its own forkserver: it is as warm. Call it before there are threads. If it fails, the first
    `process.start` starts another one.
    """
    multiprocessing.forkserver.set_forkserver_preload([])
    spawn, util.spawnv_passfds = util.spawnv_passfds, preload.run_in_copy
    try:
        multiprocessing.forkserver.ensure_running()
    except OSError:
        return
    finally:
        util.spawnv_passfds = spawn
    forkserver.use_copy()

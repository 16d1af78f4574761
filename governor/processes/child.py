"""The child's side of `process.start`: the one target that every child process runs.

Rules:
* The target is named, and imported here: the daemon never imports it, hence neither Ray nor user code.
* The process exits by `os._exit`: no thread, finalizer or executor can delay that.
* Exit code: what the target returns (None is 0); a target that raises or cannot be imported ends in 70, with its
  traceback on stderr.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from governor.errors import ExitCode
from governor.processes import kill_tree, prctl

if TYPE_CHECKING:
    from aiomultiprocess.types import Unit


async def run_target(target: str, payload: bytes, mark: int) -> int | None:
    """Marks this process, then imports `module:function` and awaits it with the payload."""
    kill_tree.mark_self(mark)
    module, _, function = target.partition(":")
    code: int | None = await getattr(import_module(module), function)(payload)
    return code


def enter(unit: Unit) -> NoReturn:
    """Replaces aiomultiprocess' own `run_async`, which has no exit code and joins threads at the end."""
    code: int = ExitCode.INTERNAL
    try:
        prctl.name_process(multiprocessing.current_process().name)
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

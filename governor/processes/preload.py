"""Preloaded in the forkserver: ties it to the daemon, imports what is heavy once, prepares each fork.

Importing this module does nothing, except in the process that `process.warm_up` started with an order in its
environment. Rules:
* PDEATHSIG first: nothing below may outlive the daemon, not even an import that hangs.
* Modules are named by the order, so this one imports no Ray. A module that fails is reported to the daemon:
  multiprocessing swallows the ImportErrors of a preload.
* The order's `later` modules are imported at `LOAD_SIGNAL`, in the main thread and between two forks.
* A direct child of the forkserver is tied to it, and leads its process group, before it runs anything else.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from multiprocessing import forkserver, util
from typing import TYPE_CHECKING, Any, Final

from governor.processes import prctl, raw_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ORDER_VARIABLE: Final = "GOVERNOR_FORKSERVER"
LOAD_SIGNAL: Final = signal.SIGUSR1
"""Sent by the daemon when children need the `later` modules too. Children have its default again."""
_DEFAULT_SIGNALS: Final = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Settings of the forkserver. `main_name` and `main_path` identify the script that children must not run again."""

    daemon: int
    address: str
    secret: str
    modules: tuple[str, ...]
    later: tuple[str, ...] = ()
    sys_path: tuple[str, ...]
    environ: dict[str, str | None]
    main_name: str | None
    main_path: str | None
    raw_output: str = ""
    """The file for what is printed while modules are imported."""
    open_files: int | None = None
    """The soft limit that children begin with; None: unchanged."""

    def dump(self) -> str:
        return json.dumps(asdict(self))


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """With these variables, in which a forkserver finds its order."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_report(datagram: bytes, secret: str) -> dict[str, str] | None:
    """The modules that a forkserver could not import, with their errors; None for a datagram from another process: others
    can find the address, but not the secret.
    """
    try:
        report = json.loads(datagram)
        failures: dict[str, str] = report["failures"]
        return failures if report["secret"] == secret else None
    except (ValueError, KeyError, TypeError):
        return None


_spawn = util.spawnv_passfds
_forkserver = 0
_in_conductor = False


def _prepare(order: Order) -> dict[str, str]:
    """Returns the modules that can't be imported, with their errors."""
    prctl.die_with_parent(expected=order.daemon)
    prctl.name_process("gov-forkserver")
    _reset_signals()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if order.open_files is not None and order.open_files < soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (order.open_files, hard))
    for name, value in order.environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.path[:] = order.sys_path
    _mark_main_as_done(order)
    return _load(order.modules, order.raw_output)


def _load(modules: Iterable[str], output: str) -> dict[str, str]:
    """As `_prepare`. What they print is in the file `output`."""
    failures = {}
    with raw_output.redirection(output):
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - an import can raise anything; it is recorded and reported
                failures[name] = f"{type(error).__name__}: {error}"
    # Loaded modules stay for ever: a collection in a child must not touch, and so copy, their pages.
    gc.collect()
    gc.freeze()
    return failures


def _reset_signals() -> None:
    """Signals that an ancestor ignored or blocked stay so across exec; children inherit their dispositions from here."""
    for number in _DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # Only the daemon handles a Ctrl-C. Children are background groups of the terminal, and may write to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _mark_main_as_done(order: Order) -> None:
    """Multiprocessing runs the daemon's script again in each child, unless `__main__` looks as if that had been done."""
    main = sys.modules["__main__"]
    if order.main_name is not None:
        main.__spec__ = importlib.machinery.ModuleSpec(order.main_name, loader=None)
    elif order.main_path is not None:
        main.__file__ = order.main_path


def _on_load_signal(*_: object) -> None:
    _report(_order, _load(_order.later, _order.raw_output))


def _after_fork() -> None:
    global _in_conductor  # noqa: PLW0603 - a conductor's own forks run this hook too, and must do nothing
    if _in_conductor:
        return
    _in_conductor = True
    signal.signal(LOAD_SIGNAL, signal.SIG_DFL)
    prctl.die_with_parent(expected=_forkserver)
    os.setpgid(0, 0)


def run_in_copy(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:  # noqa: ARG001 - as multiprocessing has it
    """Replaces multiprocessing's `spawnv_passfds`, which runs its command in a new interpreter: runs it in a fork of this process.
    Returns the pid. The fork is tied to this process as a forkserver is to its daemon, and has a group of its own.
    """
    global _forkserver, _in_conductor  # the fork is a forkserver again
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        util.spawnv_passfds = _spawn
        # Its lock was held at the fork; user code that starts processes of its own would wait for it for ever.
        forkserver._forkserver.__init__()  # type: ignore[misc]  # noqa: SLF001
        prctl.die_with_parent(expected=parent)
        prctl.name_process("own-forkserver")
        os.setpgid(0, 0)
        _forkserver, _in_conductor = os.getpid(), False
        exec(args[-1], {})  # noqa: S102 - the command is multiprocessing's own
    finally:
        os._exit(1)


def _report(order: Order, failures: dict[str, str]) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        contextlib.suppress(ConnectionRefusedError),  # the daemon is dead, and PDEATHSIG ends this process
    ):
        message = json.dumps({"secret": order.secret, "failures": failures})
        sender.sendto(message.encode(), "\0" + order.address)


if ORDER_VARIABLE in os.environ:
    _order = Order(**json.loads(os.environ.pop(ORDER_VARIABLE)))
    _failures = _prepare(_order)
    _forkserver = os.getpid()
    os.register_at_fork(after_in_child=_after_fork)
    signal.signal(LOAD_SIGNAL, _on_load_signal)
    _report(_order, _failures)

"""The process that owns a local Ray head: `python -m governor.tasks.cluster.head_process SETTINGS`, a child of the daemon.

It starts the GCS and the raylet and nothing else: `ray start` adds an API server (90 MB, more than a second) and a
monitor that tasks do not need, and puts the head on the machine's outward address even when told 127.0.0.1. Here all
ports are on the loopback interface. It writes JSON lines to standard output: ``{"part", "pid"}`` for each process that it
has started, so that the daemon sees the exit of one for which Ray would wait half a minute, and, when ready, its address.
It exits, with all that it started, when one of the two exits or on SIGTERM, and by PDEATHSIG when the daemon exits. The
daemon checks whether they answer.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import ray._private.node as ray_node
from ray._private.parameter import RayParams

from governor.processes import kill_tree, prctl

if TYPE_CHECKING:
    from types import FrameType

HOST: Final = "127.0.0.1"
"""The only address for which Ray listens on the loopback interface alone: for 127.0.0.2 it listens on all interfaces."""


class _ReportedProcesses(dict[str, list[Any]]):
    """Processes by their kinds, as Ray keeps them: each is reported when it is added."""

    def __setitem__(self, kind: str, infos: list[Any]) -> None:
        super().__setitem__(kind, infos)
        for info in infos:
            _write({"part": kind, "pid": info.process.pid})


class Head(ray_node.Node):
    """Ray's own node without the parts that only its dashboard needs."""

    @property
    def all_processes(self) -> _ReportedProcesses:
        return self._reported

    @all_processes.setter
    def all_processes(self, processes: dict[str, list[Any]]) -> None:
        self._reported = _ReportedProcesses(processes)

    def start_api_server(self, **_: Any) -> None:
        """Does nothing: the API server is not used."""


def main(settings: str) -> int:
    """Starts the head, reports its address, and waits for its end."""
    wanted = json.loads(settings)
    prctl.die_with_parent(expected=wanted["parent"])
    kill_tree.mark_self(wanted["mark"])
    params = RayParams(
        node_ip_address=HOST,
        num_cpus=wanted["num_cpus"],
        temp_dir=wanted["temp_dir"],
        object_store_memory=wanted["object_store_bytes"],
        gcs_server_port=0,
        include_dashboard=False,
        include_log_monitor="",
        no_monitor=True,
    )
    head = Head(params, head=True, shutdown_at_exit=True, spawn_reaper=True)
    signal.signal(signal.SIGTERM, _leave)
    pids = {info.process.pid: kind for kind, infos in head.all_processes.items() for info in infos}
    _write({"address": head.gcs_address, "raylet_port": head.node_manager_port})
    poll = select.poll()
    kinds = {os.pidfd_open(pid): kind for pid, kind in pids.items()}
    for pidfd in kinds:
        poll.register(pidfd, select.POLLIN)
    (first, _), *_ = poll.poll()
    sys.stderr.write(f"{kinds[first]} has ended\n")
    return 1


def _write(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

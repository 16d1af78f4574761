"""Joins a running Ray, without Ray's changes to signal handlers, addresses and standard output."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor import logs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

QUERY_SECONDS: Final = 10.0

log = logs.get_logger()


class _WorkerPath(list[str]):
    """Folders of which a worker of Ray puts each in front of its path, the last one in front of all. What Ray itself adds, our working
    folder, goes behind: it is the run file's, and a transport.py there would be in place of ours.
    """

    def extend(self, folders: Iterable[str]) -> None:
        self[:0] = folders


def join(address: str, *, token_path: str | None, namespace: str) -> Any:
    """Connects, and returns the module `ray`. Blocks; raises any error of Ray."""
    _set_variables(token_path)
    import ray  # noqa: PLC0415  # its variables are read when it is imported
    from ray.job_config import JobConfig  # noqa: PLC0415  # as above

    if address.startswith("127.0.0.1:"):
        keep_loopback_address()
    # Ray warns that it sets no SIGTERM handler outside the main thread: ours must stay. Nobody asks where it connects to.
    logging.getLogger("ray._private.worker").addFilter(
        lambda line: line.levelno >= logging.WARNING and "SIGTERM" not in line.getMessage()
    )
    root = str(Path(__file__).parents[3])
    ray.init(
        address=address,
        namespace=namespace,
        log_to_driver=False,
        configure_logging=False,
        job_config=JobConfig(_py_driver_sys_path=_WorkerPath([*filter(None, sys.path), root])),
    )
    _redirect_output()
    return ray


def raylets(address: str, *, token_path: str | None) -> list[tuple[str, int]]:
    """Hosts and ports of those that Ray takes for alive, without a connection as a driver. Blocks, 40 s at most; raises any error of Ray."""
    _set_variables(token_path)
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # noqa: PLC0415  # as above
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]  # noqa: PLC0415  # as above

    nodes = GcsClient(address=address).get_all_node_info(
        timeout=QUERY_SECONDS, state_filter=GcsNodeInfo.GcsNodeState.ALIVE
    )
    return [(node.node_manager_address, node.node_manager_port) for node in nodes.values()]


def _set_variables(token_path: str | None) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if token_path is not None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_path}
    from ray._raylet import Config  # type: ignore[attr-defined]  # noqa: PLC0415  # as in `join`

    # Reads the variables again: in a fork of a process that had imported Ray they came late.
    Config.initialize("")


def keep_loopback_address() -> None:
    """`ray.init` replaces 127.0.0.1 by the machine's outward address, where our own head does not listen."""
    import ray._private.services as ray_services  # noqa: PLC0415  # after its variables are set

    ray_services.resolve_ip_for_localhost = lambda host: host


def _redirect_output() -> None:
    """Redirects what Ray prints in its driver to the log: standard output belongs to the command line."""
    import ray._private.worker as ray_worker  # noqa: PLC0415  # after its variables are set

    def note(data: Mapping[str, Any], *_: object, **__: object) -> None:
        log.debug("ray.log", text=" ".join(data.get("lines", ()))[:1000])

    ray_worker.print_to_stdstream = note


def worker_id() -> str:
    """The id of this process in its Ray, with that of the cluster: by itself it is the same in each new cluster. "" without Ray,
    which is not imported to find out.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    node = ray._private.worker.global_worker.node  # noqa: SLF001  # its only place
    cluster = "" if node is None else node.cluster_id.hex()
    return f"{ray.get_runtime_context().get_worker_id()}@{cluster}"

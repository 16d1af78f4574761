"""What the daemon provides to its runs: folders, endpoints, services. The daemon makes it once and passes it to its
governors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from governor.journal.journal import Journal
    from governor.logs import LogFormat
    from governor.runs.file_watch import FileWatch
    from transport.access import Secret
    from transport.client import Client


class RayProvider(Protocol):
    """Provides a Ray cluster to the task conductors."""

    async def settings(self) -> dict[str, Any]:
        """``{"address": "host:port", "token_path": path or None}``, once Ray can be reached. Raises ProcessError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """`client` is the daemon's client of its broker, at the private endpoint. `secret` is new at each start of the
    daemon. The folders exist and only the daemon can access them.
    """

    client_endpoint: str
    private_endpoint: str
    worker_endpoint: str
    secret: Secret
    client: Client
    journal: Journal
    files: FileWatch
    ray: RayProvider
    runs_folder: Path
    runtime_folder: Path
    log_format: LogFormat
    log_level: str

    def run_secret(self, uid: str) -> Secret:
        """The secret shared by the run's conductors and the daemon."""
        return self.secret.of(uid.encode())

    def run_folder(self, uid: str) -> Path:
        """The folder of the run's files."""
        return self.runs_folder / uid

    def socket_folder(self, uid: str) -> Path:
        """The folder of the run's sockets while it is in work."""
        return self.runtime_folder / uid

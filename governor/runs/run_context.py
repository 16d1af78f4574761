"""What the house offers to a run: where things are, whom to ask. Made once by the daemon, handed to its governors."""

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
    """Whoever has a Ray cluster for the task conductors."""

    async def settings(self) -> dict[str, Any]:
        """``{"address": "host:port", "token_path": path or None}``, once Ray can be reached. Raises ProcessError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """`client` is the daemon's own client of its broker, at the private endpoint. `secret` is this invocation's. Folders
    exist and belong to the daemon alone.
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
        """What the run's conductors show, and whoever commands them."""
        return self.secret.of(uid.encode())

    def run_folder(self, uid: str) -> Path:
        """Where the run's files are kept."""
        return self.runs_folder / uid

    def socket_folder(self, uid: str) -> Path:
        """Where the run's sockets are while it is in work."""
        return self.runtime_folder / uid

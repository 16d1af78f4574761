"""What a conductor needs when it starts, for one that a test starts without a run."""

from __future__ import annotations

from governor.messages import ConductorSpec
from transport.access import Secret


def conductor_spec(folder, **fields):
    """That of a task conductor without a broker, unless `fields` say otherwise; all of its folders are `folder`."""
    given = {
        "uid": "test-run",
        "name": "tasks",
        "kind": "task",
        "incarnation": 1,
        "client_endpoint": "",
        "worker_endpoint": "",
        "secret": Secret.new(),
        **dict.fromkeys(("run_folder", "socket_folder", "import_folder"), str(folder)),
        "seed": 0,
    }
    return ConductorSpec(**{**given, **fields})

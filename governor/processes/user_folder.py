"""Where user code runs: in the run file's folder, which is on the import path and the working directory, with the run's environment
variables.

Relative paths in user code, in `params` and in `args` begin there, wherever the daemon was started.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_A_SERVICE: Final = ("/tmp/", "/var/tmp/")  # noqa: S108  # where PrivateTmp= of systemd puts others
"""Folders of which a service has its own."""


def enter(folder: str, variables: Mapping[str, str] | None = None) -> None:
    """For the whole process. Raises ConductorError when the folder is not there any more, or must not be entered."""
    os.environ.update(variables or {})
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        os.chdir(folder)
    except OSError as error:
        raise ConductorError(
            f"the run file's folder {folder} cannot be entered ({error.strerror}): user code is imported from it, and "
            f"works in it; {_remedy(folder, error)}"
        ) from error


def _remedy(folder: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "let the daemon's user enter it, or submit the run file from a folder that this user can read"
    remedy = "put it back, or submit the run file from where it is now"
    if folder.startswith(OF_A_SERVICE):
        remedy += (
            f" ({' and '.join(OF_A_SERVICE)} of a service are its own: it sees no folder of others there)"
        )
    return remedy

"""Where user code runs: in the run file's folder, which is on the import path and the working directory, with the run's environment
variables.

Relative paths in user code, in `params` and in `args` begin there, wherever the daemon was started.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
            "works in it; put it back, or submit the run file from where it is now"
        ) from error

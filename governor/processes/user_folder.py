"""The run file's folder, in each process that runs user code: it is on the import path, and it is the working directory.

Relative paths in user code, in `params` and in `args` begin there, wherever the daemon was started.
"""

from __future__ import annotations

import os
import sys

from governor.errors import ConductorError


def enter(folder: str) -> None:
    """For the whole process. Raises ConductorError when the folder is not there any more, or must not be entered."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        os.chdir(folder)
    except OSError as error:
        raise ConductorError(
            f"the run file's folder {folder} cannot be entered ({error.strerror}): user code is imported from it, and "
            "works in it; put it back, or submit the run file from where it is now"
        ) from error

"""The limit of open files of this process. Imports nothing heavy: a daemon checks it first."""

from __future__ import annotations

import resource
import sys
from typing import Final

LEAST_FILES: Final = 1_024
"""With fewer a flood aborts the broker: with 512 it did, before 400 connections had been seen."""


def file_limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        sys.maxsize if soft == resource.RLIM_INFINITY else soft,
        sys.maxsize if hard == resource.RLIM_INFINITY else hard,
    )


def raise_file_limit() -> None:
    """Raise this process's soft limit of open files to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

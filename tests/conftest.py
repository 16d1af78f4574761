"""Lines that the code logs go to standard error: standard output is what tests of the command line read."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import structlog

from governor.logs import PatientStream

structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=PatientStream(sys.stderr)))


@pytest.fixture
def short_path():
    """A folder as `tmp_path`, below which the path of a socket is not too long."""
    folder = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)

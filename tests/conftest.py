"""What holds for all tests: lines that the code logs go to standard error, since standard output is what tests of the
command line read; and what tests start hears SIGINT, also where a shell's `&` had it ignored.
"""

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
import structlog

from governor.logs import PatientStream

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=PatientStream(sys.stderr)))


@pytest.fixture
def short_path():
    """A folder as `tmp_path`, below which the path of a socket is not too long."""
    folder = Path(tempfile.mkdtemp(prefix="gt-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)

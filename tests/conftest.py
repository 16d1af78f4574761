"""Lines that the code logs go to standard error: standard output is what tests of the command line read."""

import sys

import structlog

from governor.logs import PatientStream

structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=PatientStream(sys.stderr)))

"""Lines that the code logs go to standard error: standard output is what tests of the command line read."""

import sys

import structlog

structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))

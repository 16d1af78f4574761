"""Lines that the code logs go to standard error: standard output is what tests of the command line read."""

from governor import logs

logs.default()

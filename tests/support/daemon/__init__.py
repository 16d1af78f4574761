"""Of tests of the daemon and its API; the index is in `tests.support`."""

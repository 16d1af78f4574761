"""Of tests of the task engine; the index is in `tests.support`."""

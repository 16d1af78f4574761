"""Of tests of reports, of the live page, and of examples; the index is in `tests.support`."""

"""Of tests with language models; the index is in `tests.support`."""

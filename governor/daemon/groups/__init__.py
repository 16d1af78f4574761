"""Groups of runs in the daemon: what they allow their runs (`limits`), what is asked of them (`verbs`), how they stand (`reports`)."""

"""The four kinds of conductors: the subprocesses of a run."""

"""Conductors: the subprocesses of a run, and what starts, watches and ends them."""

"""Phases of a run that are played on Ray: a task graph, or a simulation."""

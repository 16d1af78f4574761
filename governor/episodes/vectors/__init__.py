"""Vectors of environments that step together, for each transport."""

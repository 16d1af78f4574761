"""Verbs for who looks after a daemon."""

"""What a question to the journal costs, in steps of SQLite's machine: the same on any machine."""

from __future__ import annotations


def steps(journal, question):
    """The steps of SQLite's machine for a question."""
    taken = 0

    def count():
        nonlocal taken
        taken += 1

    for connection in journal._readers._idle:
        connection.set_progress_handler(count, 1)
    question(journal)
    for connection in journal._readers._idle:
        connection.set_progress_handler(None, 1)
    return taken

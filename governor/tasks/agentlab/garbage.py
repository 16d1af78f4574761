"""Garbage collections during a graph look at its own objects alone.

In a process with Ray a full collection looks at a hundred thousand objects of modules, which stay. A graph of 10,000 experiments
causes several, a fifth of its processor time.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_graphs = 0


@contextmanager
def older_objects_spared() -> Iterator[None]:
    """Collections leave out what there was before, until the last such graph of the process has ended. What the user has frozen
    stays frozen, and then nothing is done here.
    """
    global _graphs  # noqa: PLW0603  # the collector is the process's
    with _lock:
        if not _graphs and gc.get_freeze_count():
            spares = False
        else:
            spares = True
            if (
                not _graphs
            ):  # later ones would freeze the garbage of those before, for as long as graphs overlap
                gc.freeze()
            _graphs += 1
    try:
        yield
    finally:
        if spares:
            with _lock:
                _graphs -= 1
                if not _graphs:
                    gc.unfreeze()

"""Which changes of code make a runner unfit for the next driver."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from governor.tasks.runner_process import calls
from governor.tasks.runner_process.cancellation import Cancellation


def test_a_module_that_was_changed_after_the_start_is_stale(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "module_of_a_user.py"
    module.write_text("")
    monkeypatch.delitem(sys.modules, "module_of_a_user", raising=False)
    __import__("module_of_a_user")
    newest = max(
        Path(file).stat().st_mtime
        for each in list(sys.modules.values())
        if (file := getattr(each, "__file__", None)) and Path(file).exists()
    )
    began = max(time.time(), newest) + 10
    assert not calls.changed_since(began)
    os.utime(module, (began + 10,) * 2)
    assert calls.changed_since(began)
    module.unlink()
    assert not calls.changed_since(began)


def test_a_ticket_of_the_driver_before_cancels_nothing():
    cancellation = Cancellation()
    try:
        cancellation._asked = frozenset({7})
        cancellation.reset()
        cancellation.enter(7)
    finally:
        cancellation.forget()

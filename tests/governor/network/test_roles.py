"""What a viewer may ask."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from structlog.testing import capture_logs

from governor.errors import NotPermitted
from governor.messages import ExecutorRequest
from governor.network import roles

CHANGING = {
    *("Submit", "SubmitGroup", "ChangeGroup", "Resume", "Abort", "Pause", "Continue", "ChangeWork"),
    *("ChangeRun", "Drain", "Undrain", "ShutdownDaemon", "Prune", "Reload", "Stop", "StorePackage"),
}


def made(kind):
    return kind(**{field.name: None for field in msgspec.structs.fields(kind) if field.required})


@pytest.mark.parametrize("kind", get_args(ExecutorRequest), ids=lambda kind: kind.__name__)
def test_each_request_is_for_all_or_changes_something(kind):
    """A new one has to be in one of the lists, this one or that of the code."""
    assert (kind in roles.LOOKING) != (kind.__name__ in CHANGING)
    for by in ({"uid": 0}, {}, {"name": "ada", "role": "operator", "address": "10.0.0.1"}):
        roles.require(by, made(kind))
    by = {"name": "bob", "role": "viewer", "address": "10.0.0.2"}
    if kind in roles.LOOKING:
        roles.require(by, made(kind))
        return
    with capture_logs() as lines, pytest.raises(NotPermitted, match="the key 'bob' is a viewer's"):
        roles.require(by, made(kind))
    assert lines == [
        {"event": "request.not_permitted", "log_level": "warning", "verb": kind.__name__, "by": by}
    ]


def test_a_role_that_nobody_knows_may_nothing():
    for kind in get_args(ExecutorRequest):
        with pytest.raises(NotPermitted):
            roles.require({"name": "x", "role": "king"}, made(kind))

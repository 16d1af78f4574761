"""Whether a process is stopped."""

from __future__ import annotations

import os
import resource
import signal

from governor.processes.identity import is_stopped


def test_a_stopped_process_is_seen_and_one_that_is_gone_is_not():
    child = os.fork()
    if not child:
        signal.pause()
    try:
        assert not is_stopped(child)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        assert is_stopped(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not is_stopped(child)


def test_without_a_free_descriptor_none_is_seen_and_nothing_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not is_stopped(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

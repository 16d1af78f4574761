"""A spool for tests of its readers."""

import os

import pytest

from governor.output import spool


@pytest.fixture
def out(tmp_path):
    descriptor = spool.create(tmp_path, "agent.a@7-1", "out")
    yield descriptor
    os.close(descriptor)

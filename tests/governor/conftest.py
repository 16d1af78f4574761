"""What tests of several packages use."""

import pytest

from governor.journal.journal import Journal


@pytest.fixture
async def journal(tmp_path):
    """An empty one, in `governor.db`."""
    opened = Journal(tmp_path / "governor.db")
    yield opened
    await opened.close()

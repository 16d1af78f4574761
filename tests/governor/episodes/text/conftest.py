"""What tests of text episodes use."""

import pytest

from tests.support.language_models.text_stage import text_stage


@pytest.fixture
async def stage():
    """Interactors on servers for environments and models."""
    async with text_stage() as made:
        yield made

"""A real Chromium for pages of reports."""

from __future__ import annotations

import pytest

from governor.report import page
from tests.support.pages import browser


@pytest.fixture(scope="session")
def playwright(tmp_path_factory):
    browser.chromium()
    return browser.install(tmp_path_factory.mktemp("playwright"))


@pytest.fixture
def visit(playwright, tmp_path):
    """Opens the page of a document; asserts that it did nothing that it must not."""

    def opened(made, script="scrolled(page)", **more):
        file = tmp_path / "report.html"
        file.write_text(page.render(made))
        found = browser.visit(playwright, file.as_uri(), script, **more)
        assert (found["console"], found["elsewhere"], found["dialogs"]) == ([], [], [])
        return found

    return opened

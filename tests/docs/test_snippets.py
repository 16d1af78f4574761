"""All that the pages show is run: each page in a folder of its own, its blocks in their order."""

import pytest

from tests.docs import pages, running


def _of_each_page():
    for path in pages.PAGES:
        name = str(path.relative_to(pages.ROOT))
        marks = [pytest.mark.system]
        if "<!-- test: long -->" in path.read_text():
            marks.append(pytest.mark.long)
        yield pytest.param(path, id=name, marks=marks)


@pytest.mark.timeout(running.PAGE_SECONDS + 60)  # a daemon is started before and stopped after
@pytest.mark.parametrize("path", [*_of_each_page()])
def test_what_a_page_shows_is_what_happens(path):
    running.run(pages.read(path))

"""Every relative link and anchor of README, CONTRIBUTING and the pages leads somewhere, on GitHub and on the site."""

from urllib.parse import unquote

import pytest

from tests.docs import pages
from tests.docs.pages import ROOT

OWN = "https://github.com/run-governor/run-governor/"
LINKING = sorted({*pages.PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("examples/**/*.md")})


def faults_of(path, page):
    """Each link of `page`, which stands at `path`, that leads nowhere."""
    found = []
    for line, link in page.links:
        target, _, anchor = unquote(link).partition("#")
        if target.startswith(OWN):
            _, _, below = target.removeprefix(OWN).partition("/main/")
            file = ROOT / below
        elif "://" in target or target.startswith("mailto:"):
            continue
        else:
            file = (path.parent / target).resolve() if target else path
        if file != path and not file.exists():
            found.append(f"{page.name}:{line}: {link}: no such file")
        elif _leaves_the_site(path, file) and not target.startswith(OWN):
            found.append(f"{page.name}:{line}: {link}: is not on the site, link to {OWN}blob/main/...")
        elif anchor and anchor not in _anchors(file, page if file == path else None):
            found.append(f"{page.name}:{line}: {link}: no such heading")
    return found


def _leaves_the_site(path, file):
    docs = ROOT / "docs"
    return path.is_relative_to(docs) and not file.is_relative_to(docs)


def _anchors(file, page):
    page = page or (pages.read(file) if file.suffix == ".md" else None)
    if page is None:
        return set()
    on_github = page.anchors_on_github()
    return on_github & page.anchors_on_the_site() if file.is_relative_to(ROOT / "docs") else on_github


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert faults_of(path, pages.read(path)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](nowhere.md)", "no such file"),
        ("[a](state-machine.md#nowhere)", "no such heading"),
        ("[a](#nowhere)", "no such heading"),
        ("[a](../CONTRIBUTING.md)", "is not on the site"),
        (f"[a]({OWN}blob/main/nowhere.py)", "no such file"),
        ("![a](nowhere.svg)", "no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text, fault):
    page = pages.parse(
        f"# A title\n\n[right](#a-title) [right](state-machine.md#states) {text}\n", "docs/page.md"
    )
    [found] = faults_of(ROOT / "docs" / "page.md", page)
    assert found.startswith("docs/page.md:3: ")
    assert found.endswith(fault) or fault in found

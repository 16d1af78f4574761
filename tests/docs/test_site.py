"""The site shows each page as GitHub does: MkDocs has another parser, which wants blank lines and deeper indents."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.docs.pages import ROOT

SITE = sorted((ROOT / "docs").glob("*.md"))
_TAG = re.compile(r"<(/?)(ul|ol|li|table|tr|pre|h[1-6])\b")


def shapes(html):
    """How often each kind of element stands in how many lists."""
    depth, found = 0, Counter()
    for closes, name in _TAG.findall(html):
        if name in {"ul", "ol"}:
            depth += -1 if closes else 1
        elif not closes:
            found[name, depth] += 1
    return found


def both(text):
    """The number of lists' items, tables and so on, on GitHub and on the site."""
    markdown = pytest.importorskip("markdown")
    settings = yaml.safe_load(re.sub(r"!!\S+", "", (ROOT / "mkdocs.yml").read_text()))
    names = [next(iter(each)) if isinstance(each, dict) else each for each in settings["markdown_extensions"]]
    on_the_site = markdown.markdown(text, extensions=names)
    on_github = MarkdownIt("commonmark").enable("table").render(text)
    return shapes(on_github), shapes(on_the_site)


@pytest.mark.parametrize("path", SITE, ids=lambda path: path.name)
def test_a_page_has_the_same_shape_on_the_site_and_on_github(path: Path):
    on_github, on_the_site = both(path.read_text())
    assert on_the_site == on_github


@pytest.mark.parametrize(
    "text",
    [
        "A paragraph:\n* and a list\n",
        "* A list:\n\n  ```text\n  a block\n  ```\n",
        "* A list\n  * of lists\n",
        "A paragraph\n```text\na block\n```\n| a |\n|---|\n",
    ],
)
def test_a_difference_is_found(text):
    on_github, on_the_site = both(text)
    assert on_the_site != on_github


def test_lists_blocks_and_tables_that_both_read():
    on_github, on_the_site = both(
        "# T\n\n* A list\n    * of lists:\n\n        ```text\n        block\n        ```\n\n| a |\n|---|\n| b |\n"
    )
    assert on_the_site == on_github
    assert on_the_site == {
        ("li", 1): 1,
        ("li", 2): 1,
        ("table", 0): 1,
        ("tr", 0): 2,
        ("h1", 0): 1,
        ("pre", 2): 1,
    }


@pytest.fixture
def built(tmp_path):
    """Builds a site of few pages with the settings of the real one."""
    pytest.importorskip("mkdocs")
    hook = ROOT / "docs" / "tools" / "plain_markdown.py"
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ntheme: {{name: mkdocs}}\nextra_css: []\nhooks: [{hook}]\n"
        "nav: [{Home: index.md}, {More: [page.md]}]\n"
    )

    def build(**pages):
        for name, text in {"index": INDEX, "page": "# A page\n", **pages}.items():
            (tmp_path / "docs" / f"{name}.md").write_text(text)
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return build


TEXT = "# Title\n\n* [A list](page.md#a-page)\n\nThe [first](page.md) sentence: more. Then others.\n"
INDEX = f"<!-- test: daemon -->\n<!-- generated: keys a:B -->\n\n{TEXT}<!-- end of generated -->\n"


def test_each_page_is_there_as_plain_markdown_and_llms_txt_lists_them(built, tmp_path):
    done = built(page="# A page\n\n```text\nblock\n```\n\nThis is `run.yaml`. It is short.\n")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "index.md").read_text() == TEXT
    assert (site / "page.html").exists()
    listed = [line for line in (site / "llms.txt").read_text().splitlines() if line]
    assert listed[0] == "# Run Governor"
    assert listed[1].startswith("> A daemon that takes experiment runs")
    assert listed[2:] == [  # that of mkdocs.yml, or the first sentence
        "## Start",
        "- [Title](index.md): What Run Governor is, and which page answers which question.",
        "## More",
        "- [A page](page.md): This is `run.yaml`.",
    ]


@pytest.mark.parametrize(
    ("pages", "fault"),
    [
        ({"page": "[a](nowhere.md)\n"}, "'nowhere.md', but the target is not found"),
        ({"page": "[a](index.md#nowhere)\n"}, "does not contain an anchor '#nowhere'"),
        ({"page": "[a](#nowhere)\n"}, "there is no such anchor on this page"),
        ({"another": "# Another\n"}, 'are not included in the "nav"'),
    ],
)
def test_what_leads_nowhere_fails_the_build(built, pages, fault):
    done = built(**pages)
    assert done.returncode == 1
    assert fault in done.stderr

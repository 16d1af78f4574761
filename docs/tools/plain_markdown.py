"""MkDocs hook: beside each page of the site its Markdown, and llms.txt, which lists them with a line each (llmstxt.org).

The line of a page is that in `extra.about` of mkdocs.yml, else the first sentence of the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

_BLOCKS = re.compile(r"^```.*?^```|^<!--.*?-->|^#.*?$|^\|.*?$|^!\[.*?$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n*", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_nav: list[Navigation] = []


def on_nav(nav: Navigation, **_: Any) -> None:
    """Keeps the order of the pages for `on_post_build`."""
    _nav[:] = [nav]


def on_post_build(config: MkDocsConfig) -> None:
    """Writes the files beside the HTML."""
    site, base = Path(config.site_dir), (config.site_url or "").rstrip("/")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    about = config.extra.get("about", {})
    section = None
    for page in _nav[0].pages:
        markdown = plain(Path(page.file.abs_src_path or "").read_text())
        target = site / page.file.src_uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(markdown)
        if (title := page.parent.title if page.parent else "Start") != section:
            section = title
            lines += ["", f"## {section}", ""]
        link = f"{base}/{page.file.src_uri}" if base else page.file.src_uri
        lines.append(
            f"- [{_title(page, markdown)}]({link}): {about.get(page.file.src_uri) or summary(markdown)}"
        )
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


def _title(page: Page, markdown: str) -> str:
    found = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    return found[1] if found else str(page.title)


def plain(markdown: str) -> str:
    """The page without its comments, which tests and generators read."""
    return _COMMENT.sub("", markdown)


def summary(markdown: str) -> str:
    """The first sentence of the page's text, without links."""
    paragraphs = [" ".join(part.split()) for part in _BLOCKS.sub("", markdown).split("\n\n") if part.strip()]
    text = next((part for part in paragraphs if not part.startswith("* ")), "")
    sentence = re.match(r".+?[.!?](?=\s|$)", text)
    return _LINK.sub(r"\1", sentence[0] if sentence else text)

"""Reads a page: its blocks of code in order, with the comments that say how they are tested, its links and its anchors.

Rules:
1. What looks like a block or a `<!-- test: ... -->` and can't be one is a fault, not text: nothing goes untested by a slip.
2. Headings have the anchors that GitHub gives them and those of MkDocs; they differ where punctuation stands in a heading.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DIRECTIVES = {"skip", "needs", "copy", "machine", "daemon", "long"}
OF_THE_PAGE = {"daemon", "long"}
_PARSER = MarkdownIt("commonmark").enable("table")
_COMMENT = re.compile(r"<!--\s*test:\s*(\w+)\s*(.*?)\s*-->")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


class PageFault(Exception):
    """A page can't be tested as it stands."""


@dataclass(frozen=True)
class Directive:
    name: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """`line` is that of the opening fence, from 1; `before` are the comments about the block."""

    language: str
    title: str
    content: str
    line: int
    before: tuple[Directive, ...] = ()

    def of(self, name):
        """The words of all directives with this name, or None."""
        found = [directive.words for directive in self.before if directive.name == name]
        return [word for words in found for word in words] if found else None


@dataclass(frozen=True)
class Page:
    name: str
    blocks: tuple[Block, ...]
    directives: frozenset[str]
    links: tuple[tuple[int, str], ...]
    headings: tuple[str, ...]
    ids: frozenset[str]

    def anchors_on_github(self):
        return {_github_slug(heading) for heading in self.headings} | self.ids

    def anchors_on_the_site(self):
        return {_mkdocs_slug(heading) for heading in self.headings} | self.ids


def read(path):
    return parse(path.read_text(), name=str(path.relative_to(ROOT)))


def parse(text, name="page.md"):
    """Raises PageFault."""
    reader = _Reader(text, name)
    before = None
    for token in _PARSER.parse(text):
        reader.take(token, before)
        before = token
    reader.refuse_pending()
    return reader.page()


class _Reader:
    """Takes the tokens of a page in their order."""

    def __init__(self, text, name):
        self._lines = text.splitlines()
        self._name = name
        self._blocks = []
        self._of_the_page = set()
        self._pending = []
        """The comments that no block has followed so far."""
        self._links = []
        self._headings = []
        self._ids = set()
        self._line = 0

    def page(self):
        return Page(
            self._name,
            tuple(self._blocks),
            frozenset(self._of_the_page),
            tuple(self._links),
            tuple(self._headings),
            frozenset(self._ids),
        )

    def take(self, token, before):
        self._line = token.map[0] + 1 if token.map else self._line
        if token.type == "html_block":
            self._pending += _directives(token.content, self._place())
            self._note_ids(token.content)
        elif token.type == "fence":
            self._take_fence(token)
        elif token.type == "code_block" and "```" in token.content:
            raise PageFault(
                f"{self._place()}: an indented fence is no block: write it without admonition or tab"
            )
        elif token.nesting >= 0:
            self.refuse_pending()
        if token.type == "inline":
            self._links += [(self._line, link) for link in _links(token)]
            for part in token.children:
                self._note_ids(part.content if part.type == "html_inline" else "")
            if before.type == "heading_open":
                self._headings.append(_text(token))

    def _take_fence(self, token):
        if not self._lines[token.map[1] - 1].strip().startswith(token.markup):
            raise PageFault(f"{self._place()}: this block is not closed")
        if not self._blocks:
            self._keep_those_of_the_page()
        self._blocks.append(_block(token, self._line, self._pending, self._place()))
        self._pending = []

    def refuse_pending(self):
        """Comments that no block follows."""
        if not self._blocks:
            self._keep_those_of_the_page()
        if self._pending:
            raise PageFault(
                f"{self._place()}: '<!-- test: {self._pending[0].name}' stands directly before a block"
            )

    def _keep_those_of_the_page(self):
        self._of_the_page |= {found.name for found in self._pending} & OF_THE_PAGE
        self._pending = [found for found in self._pending if found.name not in OF_THE_PAGE]

    def _note_ids(self, html):
        self._ids |= set(re.findall(r'\bid="([^"]+)"', html))

    def _place(self):
        return f"{self._name}:{self._line}"


def _directives(html, place):
    found = []
    for name, words in _COMMENT.findall(html):
        if name not in DIRECTIVES:
            raise PageFault(f"{place}: unknown '<!-- test: {name}', it must be one of {sorted(DIRECTIVES)}")
        if not words and name not in OF_THE_PAGE:
            raise PageFault(f"{place}: '<!-- test: {name} -->' says nothing more")
        found.append(Directive(name, tuple(words.split())))
    if len(found) != len(re.findall(r"<!--\s*tests?\b", html)):
        raise PageFault(f"{place}: write '<!-- test: NAME ... -->' on one line")
    return found


def _block(token, line, pending, place):
    if misplaced := OF_THE_PAGE.intersection(found.name for found in pending):
        raise PageFault(f"{place}: '<!-- test: {misplaced.pop()} -->' stands at the page's top")
    language, _, rest = token.info.strip().partition(" ")
    attributes = dict(_ATTRIBUTE.findall(rest))
    if "title" in rest and "title" not in attributes:
        raise PageFault(f'{place}: write title="FILE"')
    return Block(language, attributes.get("title", ""), token.content, line, tuple(pending))


def _links(token):
    for part in token.children:
        if part.type == "link_open":
            yield part.attrs["href"]
        elif part.type == "image":
            yield part.attrs["src"]
        elif part.type == "html_inline":
            yield from re.findall(r'\b(?:href|src)="([^"]+)"', part.content)


def _text(token):
    return "".join(part.content for part in token.children if part.type in {"text", "code_inline"})


def _github_slug(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _mkdocs_slug(heading):
    ascii_only = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())

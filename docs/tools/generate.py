"""`python docs/tools/generate.py` writes the generated parts of the pages; with `--check` it names the pages that are out of date.

A part stands between ``<!-- generated: KIND WORDS -->`` and ``<!-- end of generated -->``; all else of a page is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import api
import keys
import operators
import verbs

DOCS = Path(__file__).parents[1]
KINDS = {
    "api": api.part,
    "brief": api.brief,
    "errors": api.errors,
    "fields": api.fields,
    "journal_fields": operators.journal_fields,
    "keys": keys.part,
    "message_ids": operators.message_ids,
    "metrics": operators.metrics,
    "own": api.own,
    "verbs": verbs.part,
}
_PART = re.compile(
    r"(?P<begin><!-- generated: (?P<kind>\w+) ?(?P<words>.*?) -->\n).*?(?P<end><!-- end of generated -->)",
    re.DOTALL,
)


def filled(page: str) -> str:
    """`page` with its generated parts made anew."""
    every = [(found["kind"], found["words"]) for found in _PART.finditer(page)]
    return _PART.sub(
        lambda found: (
            f"{found['begin']}\n{KINDS[found['kind']](found['words'], page, every)}\n{found['end']}"
        ),
        page,
    )


def main() -> None:
    """Exits with 1 where `--check` finds a page that is out of date."""
    late = []
    for path in sorted(DOCS.glob("*.md")):
        old = path.read_text()
        if (new := filled(old)) != old:
            late.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new)
    if "--check" in sys.argv and late:
        sys.exit(f"out of date: {', '.join(late)}; `make docs` writes their generated parts anew")


if __name__ == "__main__":
    main()

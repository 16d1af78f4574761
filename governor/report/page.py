"""One HTML file of a document: template, styles, scripts and data in it, and no request to anywhere.

Rules:
1. All texts are data: they travel as JSON, and the scripts put them on the page as text. Nothing of a user is HTML.
2. The page allows itself only its own scripts and styles, by a nonce (Content-Security-Policy), and no connection, but to its stream if
   it is live.
3. Without scripts it still says what the run came to.
"""

from __future__ import annotations

import base64
import math
import secrets
import zlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import Environment
from markupsafe import Markup

if TYPE_CHECKING:
    from governor.report.document import Document

PLAIN_BYTES: Final = 200_000
"""Above that the data are compressed: a browser unpacks them in a few milliseconds, but nobody can read them in an editor."""
SCRIPTS: Final = (
    "core.js",
    "chart.js",
    "table.js",
    "section_summary.js",
    "section_comparison.js",
    "section_failures.js",
    "section_curves.js",
    "section_timeline.js",
    "section_usage.js",
    "section_episodes.js",
    "section_steps.js",
    "section_tasks.js",
    "section_run_file.js",
    "live.js",
    "main.js",
)
"""In the order in which they run, all in the scope of one function."""
_HARMLESS: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPES: Final = str.maketrans(_HARMLESS)


def render(document: Document, *, stream: str | None = None) -> str:
    """The page. `stream`: the path of the events that change it, if it is live."""
    assets = _assets()
    nonce = secrets.token_urlsafe(16)
    packed, is_packed = _packed(encode(document))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            f"style-src 'nonce-{nonce}'",
            "style-src-attr 'unsafe-inline'",  # sizes and places that scripts set; no text of a user becomes one
            "img-src data:",
            f"connect-src {'data:' if stream is None else chr(39) + 'self' + chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    page: str = _template().render(
        document=document,
        title=_title(document),
        policy=policy,
        nonce=nonce,
        styles=assets.styles,
        scripts=assets.scripts,
        data=Markup(packed),  # noqa: S704  # base64, or JSON without any < > &
        is_packed=is_packed,
        stream=stream,
    )
    return page


def encode(value: Any) -> str:
    """JSON that may stand in an HTML script element. NaN and the infinities become null."""
    return msgspec.json.encode(_finite(msgspec.to_builtins(value))).decode().translate(_ESCAPES)


def _finite(value: Any) -> Any:
    """As msgspec writes them as null, but not where a user's object is a key, and without lone surrogates, which are no UTF-8."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_finite(str(key)): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _packed(text: str) -> tuple[str, bool]:
    if len(text) <= PLAIN_BYTES:
        return text, False
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(deflate.compress(text.encode()) + deflate.flush()).decode(), True


def _title(document: Document) -> str:
    names = [run.summary.name for run in document.runs]
    if len(names) == 1:
        return f"{names[0]}: {document.runs[0].summary.outcome}"
    return f"{len(names)} runs: {', '.join(dict.fromkeys(names))}" if names else "Run Governor"


class _Assets(msgspec.Struct, frozen=True):
    styles: Markup
    scripts: Markup


@cache
def _assets() -> _Assets:
    folder = resources.files("governor.report") / "assets"

    def text(name: str) -> str:
        return folder.joinpath(*name.split("/")).read_text(encoding="utf-8")

    own = "\n".join(text(name) for name in SCRIPTS)
    library = text("uplot/uPlot.iife.min.js")
    return _Assets(
        styles=Markup(text("uplot/uPlot.min.css") + text("page.css")),  # noqa: S704  # our own
        scripts=Markup(f'{library}\n(() => {{\n"use strict";\n{own}\n}})();'),  # noqa: S704  # as above
    )


@cache
def _template() -> Any:
    source = (resources.files("governor.report") / "templates" / "page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)

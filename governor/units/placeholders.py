"""Placeholders in texts of a run file: ``{lr}``, ``{run_folder}``, ``{services.model.port}``.

Only a name in braces is one; other braces stay as they are, and so does ``${HOME}`` of a shell. ``{{lr}}`` is the text ``{lr}``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME: Final = r"[A-Za-z_][\w-]*(?:\.[A-Za-z0-9_][\w-]*)*"
_PLACEHOLDER: Final = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|(?<!\$)\{{(?P<name>{_NAME})\}}")


def names(text: str) -> Iterator[str]:
    """Of the placeholders in `text`."""
    for found in _PLACEHOLDER.finditer(text):
        if found["name"]:
            yield found["name"]


def filled(text: str, value_of: Callable[[str], Any]) -> str:
    """`text` with the values of its placeholders: texts as they are, others as JSON. Raises what `value_of` raises."""

    def value(found: re.Match[str]) -> str:
        if found["literal"]:
            return f"{{{found['literal']}}}"
        given = value_of(found["name"])
        return given if isinstance(given, str) else json.dumps(given)

    return _PLACEHOLDER.sub(value, text)


def replaced(text: str, text_of: Callable[[str], str | None]) -> str:
    """`text` with some of its placeholders: the others stay, as those of None do."""

    def one(found: re.Match[str]) -> str:
        text = text_of(found["name"]) if found["name"] else None
        return found[0] if text is None else text

    return _PLACEHOLDER.sub(one, text)

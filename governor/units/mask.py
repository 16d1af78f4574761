"""Replaces the values of secrets in what is kept of a run: in its lines, and in what its conductors report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST: Final = 8
"""Characters of a secret: a shorter text is found where nobody means it."""


class Mask:
    """Of secrets by the environment variables that have them; each value is replaced by ``[secret NAME]``, also as part of a URL or of a
    text in JSON, and each line of one that has several.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        found: dict[str, str] = {}
        for name, value in (secrets or {}).items():
            for text in (value, *value.splitlines()):
                for form in (text, quote(text, safe=""), json.dumps(text)[1:-1]):
                    if len(form) >= LEAST:
                        found.setdefault(form, f"[secret {name}]")
        self._labels = sorted(found.items(), key=lambda item: -len(item[0]))
        self._raw = [text.encode() for text in found]

    def __bool__(self) -> bool:
        return bool(self._labels)

    def text(self, text: str) -> str:
        for value, label in self._labels:
            if value in text:
                text = text.replace(value, label)
        return text

    def packed(self, message: bytes) -> bytes:
        """The same of all texts of a message in msgpack. Raises `msgspec.MsgspecError`."""
        if not any(value in message for value in self._raw):
            return message
        return msgspec.msgpack.encode(self._masked(msgspec.msgpack.decode(message)))

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._masked(key): self._masked(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._masked(each) for each in value]
        return value

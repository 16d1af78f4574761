"""Entries of the run file that name no Python class: a language model, and environments behind a server."""

from __future__ import annotations

from typing import Final

LANGUAGE_MODEL: Final = "openai:"


def is_language_model(entry: str) -> bool:
    """``openai:MODEL``: any server of OpenAI chat completions."""
    return entry.startswith(LANGUAGE_MODEL)


def is_over_http(entry: str) -> bool:
    return entry.startswith(("http://", "https://"))

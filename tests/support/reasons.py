"""Reasons of failures without the place of the exception, whose line changes with the file."""

from __future__ import annotations

from governor.failures import place_in


def without_place(reason: str) -> str:
    return str(reason).removesuffix(place_in(reason))

"""Tables for operators: message ids and fields of the journal, families of metrics, from their declarations."""

from __future__ import annotations

from governor import journald
from governor.metrics import FAMILIES


def message_ids(*_: object) -> str:
    """A row for each kind of event that has an id."""
    rows = [
        f"| `{event}` | {kind and f'`{kind}`'} | `{number}` |"
        for (event, kind), number in journald.MESSAGE_IDS.items()
    ]
    return "\n".join(["| `EVENT` | outcome or state | `MESSAGE_ID` |", "|---|---|---|", *rows, ""])


def journal_fields(*_: object) -> str:
    """A row for each key of a line that has a field of its own."""
    rows = [f"| `{field}` | `{key}` |" for key, field in journald.FIELDS.items()]
    return "\n".join(["| field | key of the JSON line |", "|---|---|", *rows, ""])


def metrics(*_: object) -> str:
    """A row for each family."""
    rows = []
    for family in FAMILIES:
        name = family.full_name + {"counter": "_total", "info": "_info"}.get(family.kind, "")
        values = ", ".join(f"`{each}`" for each in family.values)
        label = f"`{family.label}`" + (f": {values}" if values else "") if family.label else ""
        rows.append(f"| `{name}` | {family.kind} | {label} | {family.help} |")
    return "\n".join(["| name | type | label | means |", "|---|---|---|---|", *rows, ""])

"""Episodes and tasks that somebody has cancelled: on record before a conductor is told, so that the next process knows, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from states.events import WorkChangeRequested

if TYPE_CHECKING:
    from governor.journal.run_records import RunRecords


def cancellations(
    journal: RunRecords, uid: str, phase: int, item: Literal["episode", "task"]
) -> dict[Any, str]:
    """The reasons, by index or id. Blocks. Raises JournalError, RecordDamaged."""
    asked = (event.data for event in journal.standing_events_of(uid, (WorkChangeRequested.kind,)))
    return {
        data[item]: data["reason"]
        for data in asked
        if data["phase"] == phase and data["change"] == "cancel" and data[item] not in {None, ""}
    }

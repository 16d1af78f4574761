"""Which runs are listed, as a question to SQLite whose cost is that of the page, whatever number of runs there is.

Rule: a page is read along one index, backwards: that of the group, else of the first label, else of the outcome or of the unended ones, else of all. The
other conditions are looked at row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor.journal.schema import KEPT, UNENDED

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL: Final = "EXISTS (SELECT 1 FROM run_labels WHERE run = position AND key = ? AND value = ?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """All of these must hold: the run is of the `group`, has the `labels`, has ended with the `outcome`; is `unended`, or is not."""

    group: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    outcome: str | None = None
    unended: bool | None = None

    def question(self, *, before: int) -> tuple[str, tuple[Any, ...]]:
        """What stands behind FROM, but for the limit, and its parameters: runs with positions below `before`, newest first."""
        labels = [*self.labels.items()]
        indexed = self.group is not None or bool(labels)
        conditions, parameters = [KEPT], list[Any]()
        source, order = "runs", "position"
        if self.group is None and labels:
            key, value = labels.pop(0)
            source = (
                "(SELECT run AS found FROM run_labels WHERE key = ? AND value = ? AND run < ?)"
                " CROSS JOIN runs ON position = found"
            )
            order = "found"
            parameters += [key, value, before]
        else:
            conditions.append("position < ?")
            parameters.append(before)
        if self.group is not None:
            conditions.append("group_uid = ?")
            parameters.append(self.group)
        if self.unended and not indexed:
            source = "runs INDEXED BY unended_runs"
        if self.unended is not None:
            conditions.append(UNENDED if self.unended else f"NOT {UNENDED}")
        if self.outcome is not None:
            conditions.append("outcome = ?")
            parameters.append(self.outcome)
        for label in labels:
            conditions.append(_LABEL)
            parameters += label
        return f"{source} WHERE {' AND '.join(conditions)} ORDER BY {order} DESC", tuple(parameters)


EVERY_RUN: Final = RunFilter()

"""The work item of an attempt, and the names of its result files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from governor.files import temporary
from governor.tasks.protocol import values
from governor.tasks.protocol.wire import WorkItem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from governor.tasks.scheduling.batch import Batch
    from governor.tasks.scheduling.events import Attempt

NAME_BYTES: Final = 100


def work_item(attempt: Attempt, batch: Batch, *, slot_index: int, models: Sequence[Any]) -> WorkItem:
    """The work item of an attempt for the runner of this slot, with the results that it depends on."""
    task, spec = attempt.task, batch.spec
    inputs = batch.inputs(task) if task.depends_on else {}
    return WorkItem(
        ticket=attempt.ticket,
        batch=spec.shown_id,
        task=task.id,
        runs=attempt.runs,
        attempt=attempt.number,
        call=task.call,
        args=task.args,
        args_key=task.args_key,
        timeout=attempt.limit,
        stem=f"{spec.folder}/{file_name(task.id)}",
        payload_inline=spec.payload_inline,
        keeps_tuples=spec.keeps_tuples,
        is_eval=task.is_eval,
        model=models[slot_index % len(models)] if models else None,
        inputs=inputs,
        repeated=tuple(name for name in inputs if batch.nodes[name].spec.repeat > 1) if inputs else (),
    )


def remove_partial_files(folder: Path, task: str, run: int) -> None:
    """Removes partially written files of a killed attempt; `folder` is that of its batch."""
    stem = folder / f"{file_name(task)}-{run}"
    for suffix in values.SUFFIXES:
        temporary(stem.with_name(stem.name + suffix)).unlink(missing_ok=True)


def file_name(text: str) -> str:
    """A file name for any id; long ones are cut and made unique by a hash of the whole id."""
    if text.isalnum() and len(text) <= NAME_BYTES and text.isascii():
        return text
    name = quote(text, safe=" ", errors="surrogatepass")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) <= NAME_BYTES:
        return name
    import hashlib  # noqa: PLC0415  # rare

    return f"{name[:NAME_BYTES]}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}"

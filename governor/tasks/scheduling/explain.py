"""Why a batch is not done yet: for every task that has not ended, what it waits for, since when and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from governor.tasks.scheduling.events import Waiting

if TYPE_CHECKING:
    from governor.tasks.api import BatchId
    from governor.tasks.scheduling.batch import Batch
    from governor.tasks.scheduling.core import Core
    from governor.tasks.scheduling.runner_slots import Job, RunnerSlot
    from governor.tasks.scheduling.task_node import TaskNode

MOST_NAMED = 5


def explain(core: Core, batch_id: BatchId) -> list[Waiting]:
    """Rows in the order of the tasks; runs at work first. Raises KeyError for a batch that is not active."""
    batch = core.batches[batch_id]
    rows: dict[str, list[Waiting]] = {}
    at_work: dict[str, set[int]] = {}
    for slot, job in batch.at_work.values():
        name = job.subtask.node.spec.id
        rows.setdefault(name, []).append(_at_work(slot, job))
        at_work.setdefault(name, set()).update(job.subtask.missing)
    queued = core.ready.since(batch.order)
    found: list[Waiting] = []
    for node in batch.nodes.values():
        if not node.left:
            continue
        name = node.spec.id
        found += rows.get(name, [])
        busy = at_work.get(name, set())
        left = tuple(run for run in node.unended(0, node.spec.repeat) if run not in busy)
        if left:
            found.append(_waiting(core, batch, node, left, queued.get(name)))
    return found


def _at_work(slot: RunnerSlot, job: Job) -> Waiting:
    attempt = job.attempt
    since: float | None = slot.waits_since
    until = None
    if job is not slot.jobs[0] or (job.started_at is None and not job.taken):
        state, why = "sent", f"runner {slot.runner} has received it, and has not begun it"
    elif job.started_at is None:
        state, why = "importing", f'runner {slot.runner} imports "{attempt.task.call}"'
    else:
        state, since, until = "running", job.started_at, job.deadline
        why = f"runner {slot.runner} executes run {job.run}" if job.run is not None else "between two runs"
    if job.termination is not None:
        state, until = "ending", job.kill_at
        why = f"runner {slot.runner} is ending it: {job.termination.error}"
    return Waiting(
        task=attempt.task.id,
        runs=job.subtask.missing,
        state=state,  # type: ignore[arg-type]  # one of the words above
        why=why,
        runner=slot.runner,
        slot_index=slot.index,
        attempt=attempt.number,
        since=since,
        until=until,
    )


def _waiting(core: Core, batch: Batch, node: TaskNode, runs: tuple[int, ...], since: float | None) -> Waiting:
    name = node.spec.id
    if node.blocked_by:
        needs = [other for other in dict.fromkeys(node.spec.depends_on) if batch.nodes[other].left]
        more = f" and {len(needs) - MOST_NAMED} more" if len(needs) > MOST_NAMED else ""
        why = f"waits for {', '.join(needs[:MOST_NAMED])}{more}"
        return Waiting(task=name, runs=runs, state="blocked", why=why)
    shape = node.shape
    ahead = core.ready.waiting(shape)
    runners = core.slots.capacity(shape)
    what = ", ".join(f"{key} {amount:g}" for key, amount in shape) or "plain"
    why = f"waits for one of {runners} {what} runners, {ahead} sub-tasks in the queue"
    if batch.spec.pin is not None:
        why = f"waits for the runner of slot {batch.spec.pin}"
    return Waiting(task=name, runs=runs, state="queued", why=why, since=since)

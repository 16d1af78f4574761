"""Runs that another one resumes: their phases, their records, and what is taken over of them."""

from __future__ import annotations

from governor.episodes.records.episode_file import folder_of, path_of
from governor.messages import EpisodeRecord, TaskRecord
from governor.run_file.load import parse
from governor.runs.record.resume import find_kept_work

SIMULATE = {"environment": "e", "agents": ["a"], "episodes": 4}


def run_of(*phases, until=(), on_failure="fail"):
    """Phases named by what they hold: "s" a simulation, "t" a task `once` and a task `thrice`, "st" both."""
    made = []
    for number, holds in enumerate(phases):
        phase = {"name": f"p{number}", "on_failure": on_failure}
        if "s" in holds:
            phase |= {"simulate": SIMULATE, "until": list(until)}
        if "t" in holds:
            phase["tasks"] = [{"id": "once", "call": "m:f"}, {"id": "thrice", "call": "m:f", "repeat": 3}]
        made.append(phase)
    conductors = {"environments": {"e": {"entry": "m:E"}}, "agents": {"a": {"entry": "m:A"}}}
    uses = any("s" in holds for holds in phases)
    return parse({"name": "r", "phases": made, **({"conductors": conductors} if uses else {})})


def episode(index, outcome="terminated", **more):
    return EpisodeRecord(
        index=index, worker=0, seed=1, outcome=outcome, value=1.0, steps=3, seconds=0.1, **more
    )


def task(name, run=0, outcome="succeeded", **more):
    return TaskRecord(task=name, run=run, outcome=outcome, attempts=1, seconds=0.1, **more)


ALL_TASKS = [task("once"), *(task("thrice", run) for run in range(3))]
FOUR = [episode(n) for n in range(4)]
UNTIL = [episode(0), episode(1, "truncated"), episode(2, "cancelled")]


async def record(journal, run, phases):
    """A run `old` whose phases had these records and ends: `{index: (records, end of simulation, end of phase)}`; an end
    of a phase is that of its tasks too.
    """

    def change(tx):
        tx.submit(uid="old", key=None, name="r", spec=run.raw(), folder="/")
        for index, (records, simulation, end) in phases.items():
            tx.event("old", "phase.started", {"phase": f"p{index}", "index": index, "episodes": 4})
            for one in records:
                (tx.episodes if isinstance(one, EpisodeRecord) else tx.tasks)("old", index, [one])
            if simulation:
                ended = {"phase": index, "part": "simulation", "end": simulation, "metrics": {"m": 1.0}}
                tx.event("old", "part.ended", ended)
            if end:
                tx.event("old", "part.ended", {"phase": index, "part": "tasks", "end": end, "metrics": {}})
                tx.event("old", "phase.ended", {"phase": f"p{index}", "index": index, "end": end})

    await journal.write(change)


def with_files(run, old):
    """The folder, with the files of phases that have simulations."""
    for phase in run.phases if old.is_dir() else ():
        if phase.simulate is not None:
            for path in (path_of(old, phase.name), folder_of(old) / f"{phase.name}.0.1.arrow"):
                path.parent.mkdir(exist_ok=True)
                path.touch()
    return old


def found(journal, run, old):
    with_files(run, old)
    return find_kept_work(journal, journal.run("old"), run, old)


async def resumed(journal, run, old, *, parent="old", uid="new"):
    """The journal with a run `uid` that has resumed the `parent`."""
    kept = find_kept_work(journal, journal.run(parent), run, with_files(run, old))

    def change(tx):
        tx.submit(uid=uid, key=None, name="r", spec=run.raw(), folder="/", parent=parent)
        kept.record(tx, uid)

    await kept.record_tasks(journal, uid)
    await journal.write(change)
    return journal

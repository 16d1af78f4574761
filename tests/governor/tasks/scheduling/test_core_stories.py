"""Random stories that obey the world: whatever happens, every run has one outcome and every batch one end."""

from __future__ import annotations

import random
from itertools import count
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from governor.messages import EndedRuns, TaskRecord
from governor.tasks.scheduling import outcomes
from governor.tasks.scheduling.core import Core
from governor.tasks.scheduling.events import (
    BatchSpec,
    BatchSubmitted,
    Cancelled,
    Replaced,
    Resized,
    TaskChanged,
    Tick,
)
from tests.support.tasks.core_world import GPU, World, task


@st.composite
def batches(draw):
    specs = []
    for number in range(draw(st.integers(1, 3))):
        tasks = []
        small = draw(st.booleans())
        for index in range(draw(st.integers(0, 12 if small else 6))):
            names = [t.id for t in tasks]
            needs = (
                draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names and not small else []
            )
            fields = {
                "repeat": 1 if small else draw(st.integers(1, 4)),
                "retries": draw(st.integers(0, 2)),
                "timeout": draw(st.sampled_from([None, 0.5, 1.0, 5.0])),
                "resources": {}
                if small
                else draw(st.sampled_from([{}, {}, {}, {"gpus": 1.0}, {"gpus": 9.0}])),
                "priority": draw(st.sampled_from([0, 0, 1])),
                "is_eval": draw(st.booleans()),
            }
            tasks.append(task(f"t{index}", *needs, **fields))
        runs = [(t.id, run) for t in tasks for run in range(t.repeat)]
        kept = draw(st.lists(st.sampled_from(runs), unique=True, max_size=3)) if runs else []
        done = tuple(
            TaskRecord(
                task=name,
                run=run,
                outcome=draw(st.sampled_from(["succeeded", "failed"])),
                attempts=1,
                seconds=1,
            )
            for name, run in kept
        )
        specs.append(
            BatchSpec(
                id=number,
                tasks=tuple(tasks),
                **draw(st.sampled_from([{"done": done}, {"ended": EndedRuns.fold(done)}])),
                split=draw(st.sampled_from([None, 1, 2])),
                min_num=draw(st.sampled_from([None, None, 1, 3])),
                wait_after_min=draw(st.sampled_from([0.0, 1.0])),
                pin=draw(st.sampled_from([None, None, None, 1]))
                if not any(t.resources for t in tasks)
                else None,
                rank=(float(number), 0),
            )
        )
    return specs


class Story:
    """Submits, cancels, replaces and resizes while the world goes on."""

    def __init__(self, specs, seed, grace):
        self.choose = random.Random(seed)
        core = Core(
            capacity={(): 2, GPU: 1},
            grace=grace,
            age=self.choose.choice([0.5, 100.0]),
            runner_ids=count(),
        )
        nine = (("gpus", 9.0),)
        core.on(Resized(0.0, {nine: 0}, {nine: "too many"}))
        self.world = World(core, self.choose)
        self.specs = specs
        self.left = list(specs)
        self.cancelled = set()

    def tell(self, steps=1500):
        world = self.world
        for _ in range(steps):
            luck = self.choose.random()
            if self.left and (luck < 0.1 or not list(world.moves())):
                world.feed(BatchSubmitted(world.now, self.left.pop(0)))
            elif luck < 0.11 and world.core.batches:
                self.cancel(self.choose.choice(list(world.core.batches)))
            elif luck < 0.12 and world.core.batches:
                self.change(self.choose.choice(list(world.core.batches.values())).spec)
            elif luck < 0.128:
                world.feed(Replaced(world.now, self.choose.randrange(2)))
            elif luck < 0.133:
                world.feed(Resized(world.now, {(): self.choose.choice([1, 2, 3])}, {}))
            elif luck < 0.138:
                self.pause(paused=not world.core.is_paused)
            elif not world.step() and not self.left:
                break
            check_counts(world.core.slots)
        world.feed(Resized(world.now, {(): 2}, {}))

    def cancel(self, batch):
        self.cancelled.add(batch)
        self.world.feed(Cancelled(self.world.now, batch, "no more", gentle=self.choose.random() < 0.5))

    def change(self, spec):
        """Cancels a task or one run of it, or has it done again."""
        if spec.tasks:
            task, again = self.choose.choice(spec.tasks), self.choose.random() < 0.5
            run = self.choose.choice([None, self.choose.randrange(task.repeat + 1)])
            self.cancelled |= set() if again else {spec.id}
            self.world.granted[spec.id, task.id] += again
            self.world.feed(TaskChanged(self.world.now, spec.id, task.id, "by hand", again, run))

    def pause(self, *, paused):
        core = self.world.core
        core.is_paused, core.is_full = paused, paused and self.choose.random() < 0.5
        self.world.feed(Tick(self.world.now))

    def finish(self):
        """Whatever hangs for ever is cancelled."""
        world = self.world
        self.pause(paused=False)
        for spec in self.left:
            world.feed(BatchSubmitted(world.now, spec))
        for _ in range(3):
            for batch in list(world.core.batches):
                world.feed(Cancelled(world.now, batch, "the end"))
            for _ in range(3000):
                if not world.core.batches:
                    return
                if not world.step():
                    break


@given(
    specs=batches(),
    seed=st.integers(0, 2**32),
    grace=st.sampled_from([0.0, 0.4]),
    portion=st.sampled_from([1, 2, 4096]),
)
def test_every_run_ends_in_exactly_one_outcome_and_every_batch_once(specs, seed, grace, portion):
    with patch.object(outcomes, "PORTION", portion):
        story = Story(specs, seed, grace)
        story.tell()
        world = story.world
        hung = bool(world.core.batches)
        story.finish()
    assert set(world.batches_ended) == {spec.id for spec in specs}
    assert world.core.outcomes.pending == 0
    limits = {(s.id, t.id): t.timeout for s in specs for t in s.tasks}
    for key in world.executed:
        if limits[key[:2]] is None:
            assert world.ended[key].outcome == "succeeded", "a finished result is not dropped"
    for spec in specs:
        check(spec, world, cancelled=hung or spec.id in story.cancelled)


def check_counts(slots):
    """What the slots count, and hold in sets, is what a walk over all runners finds."""
    for shape, of_shape in slots._shapes.items():
        every = [slot for slot in slots.all() if slot.shape == shape]
        idle = [slot for slot in every if slot.state == "idle"]
        dying = [slot for slot in every if slot.state == "dying"]
        assert set(of_shape.slots.values()) == set(every)
        assert set(of_shape.starting.values()) == {slot for slot in every if slot.state == "starting"}
        assert set(of_shape.spares.values()) == {slot for slot in idle if slot.index is None}
        assert set(of_shape.outgoing.values()) == {
            slot for slot in idle if slot.index is not None and slot.replace
        }
        assert set(of_shape.idle.values()) == {
            slot for slot in idle if slot.index is not None and not slot.replace
        }
        assert of_shape.wanting == {slot.runner for slot in every if slot.spare_wanted or slot.replace}
        assert of_shape.by_index == {slot.index: slot for slot in every if slot.index is not None}
        assert of_shape.dying == len(dying)
        assert of_shape.dying_indexed == sum(slot.index is not None for slot in dying)
        assert set(of_shape.free_indices) == set(range(of_shape.capacity)) - of_shape.by_index.keys()
    assert set(slots._replacing.values()) == {slot for slot in slots.all() if slot.replace}


def check(spec, world, *, cancelled):
    done = {(r.task, r.run): r.outcome for r in spec.done} | ended_before(spec)
    runs = {(t.id, run) for t in spec.tasks for run in range(t.repeat)}
    ended = {key[1:]: record for key, record in world.ended.items() if key[0] == spec.id}
    assert set(ended) == runs - set(done)
    every = {**{key: record.outcome for key, record in ended.items()}, **done}
    end = world.batches_ended[spec.id]
    bad = [outcome for outcome in every.values() if outcome not in ("succeeded", "upstream_failed")]
    if end.end == "enough":
        assert (
            sum(all(every[t.id, run] == "succeeded" for run in range(t.repeat)) for t in spec.tasks)
            >= spec.min_num
        )
    else:
        assert end.failures == len(bad)
        assert cancelled or not any(r.outcome == "cancelled" for r in ended.values())
    by_id = {t.id: t for t in spec.tasks}
    for (name, _), record in ended.items():
        assert 0 <= record.attempts <= by_id[name].retries + 1 + world.granted[spec.id, name]
        if record.outcome == "upstream_failed":
            causes = [outcome for (other, _), outcome in every.items() if other == record.cause]
            assert any(outcome not in ("succeeded", "upstream_failed") for outcome in causes)


def ended_before(spec):
    """Outcomes of the runs in `ended`; which ones of a task have failed is not known, apart from the first."""
    found = {}
    for name, each in spec.ended.items():
        others = [run for run in each.runs if each.failure is None or run != each.failure.run]
        failed = [] if each.failure is None else [each.failure.run, *others[: each.failures - 1]]
        found |= {(name, run): "failed" if run in failed else "succeeded" for run in each.runs}
    return found

"""What runs share: order by priority, the machine by what they require, bounds for each user."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor import config
from governor.daemon.run_queue import RunQueue
from governor.daemon.sharing.capacity import Sharing, capacity
from governor.errors import TryAgain, UsageError
from governor.run_file.model import Requires
from governor.runs.assignment import Waiting


def configured(**options):
    given = {
        "state_dir": "/s",
        "runtime_dir": "/r",
        "machine.cpus": 4,
        "machine.gpus": 2,
        "machine.memory": "8 GiB",
    }
    return config.load(options={**given, **{key.replace("__", "."): value for key, value in options.items()}})


class World:
    """Slots that hold what begins in them."""

    def __init__(self, slots=4, **options):
        self.slots = [SimpleNamespace(holding=None) for _ in range(slots)]
        self.queue = RunQueue(limit=100)
        self.sharing = Sharing(self.queue, configured(**options), slots=lambda: self.slots)

    def add(self, uid, *, owner=None, priority=0, **requires):
        needed = Requires(**requires) if requires else None
        self.queue.append(Waiting(uid=uid, owner=owner, priority=priority, requires=needed))

    def begin(self):
        """Has runs begin while they may; returns them with their GPUs."""
        begun = []
        while (free := next((each for each in self.slots if each.holding is None), None)) and (
            run := self.queue.first()
        ):
            self.queue.remove(run.uid)
            gpus = self.sharing.machine.gpus_for(run)
            free.holding = SimpleNamespace(uid=run.uid, requires=run.requires, gpus=gpus, owner=run.owner)
            begun.append((run.uid, *gpus))
        return begun

    def end(self, uid):
        next(each for each in self.slots if each.holding and each.holding.uid == uid).holding = None

    def obstacle(self, uid):
        return self.queue.obstacle(self.queue.find(uid))


def test_the_highest_priority_begins_first_and_of_one_who_came_first():
    world = World(slots=1)
    for uid, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)]:
        world.add(uid, priority=priority)
    assert world.queue.uids() == ["b", "d", "a", "e", "c"]
    assert [world.queue.position(uid) for uid in "bdaec"] == [0, 1, 2, 3, 4]
    world.queue.set(Waiting(uid="e", priority=5))
    assert world.queue.uids() == ["b", "d", "e", "a", "c"]
    first = world.queue.remove("b")
    world.queue.put_back(first)
    assert world.queue.uids() == ["b", "d", "e", "a", "c"]
    world.queue.pause("b", "a guest")
    assert (world.queue.first().uid, world.queue.position("a")) == ("d", 2)


@given(st.lists(st.tuples(st.sampled_from(["append", "put_back", "remove", "set"]), st.sampled_from("abcdef"), st.sampled_from([-1, 0, 7]))))  # fmt: skip
def test_positions_agree_with_the_order_whatever_happens(story):
    queue, model = RunQueue(limit=1), []
    for step, uid, priority in story:
        run = Waiting(uid=uid, priority=priority)
        known = next((each for each in model if each.uid == uid), None)
        if step == "append" and known is None:
            queue.append(run)
            model.append(run)
        elif step == "put_back":
            queue.put_back(run)
            model = [run, *(each for each in model if each is not known)]
        elif step == "remove":
            assert queue.remove(uid) == known
            model = [each for each in model if each is not known]
        elif step == "set" and known is not None:
            queue.set(run)
            if known.priority == priority:
                model[model.index(known)] = run
            else:
                model = [*(each for each in model if each is not known), run]
        expected = [each.uid for each in sorted(model, key=lambda each: -each.priority)]
        assert queue.uids() == expected
        assert [queue.position(each) for each in expected] == list(range(len(expected)))
        assert len(queue) == len(model)


def test_what_runs_at_once_fits_the_machine_and_a_gpu_is_one_runs_alone():
    world = World()
    world.add("a", gpus=1, cpus=2)
    world.add("b", gpus=1, cpus=2)
    world.add("c", gpus=1)
    world.add("free")
    assert world.begin() == [("a", "0"), ("b", "1"), ("free",)]
    assert world.obstacle("c") == "1 gpu (0 free); held by a, b"
    world.end("a")
    assert world.begin() == [("c", "0")]


def test_a_large_run_is_not_passed_by_small_ones_that_require_something():
    world = World()
    world.add("a", cpus=3)
    assert world.begin() == [("a",)]
    world.add("large", cpus=4)
    world.add("small", cpus=1)
    world.add("none")
    assert world.begin() == [("none",)]
    assert world.obstacle("large") == "4 cpus (1 free); held by a"
    assert world.obstacle("small") == "run large, which is before it and waits for 4 cpus (1 free)"
    world.queue.pause("large", "a guest")
    assert world.begin() == [("small",)]
    world.queue.pause("large", None)
    world.end("small")
    world.end("a")
    assert world.begin() == [("large",)]


def test_memory_counts_too_and_what_never_fits_is_refused():
    world = World()
    world.add("a", memory="5 GiB")
    world.add("b", memory="5 GiB")
    assert world.begin() == [("a",)]
    assert world.obstacle("b") == "5 GiB of memory (3 GiB free); held by a"
    machine = world.sharing.machine
    machine.require_possible(None)
    machine.require_possible(Requires(cpus=4, gpus=2, memory="8 GiB"))
    for too_much in ({"gpus": 3}, {"cpus": 4.5}, {"memory": "9 GiB"}):
        with pytest.raises(UsageError, match=r"on this machine\): see \[machine\]"):
            machine.require_possible(Requires(**too_much))


def test_users_have_bounds_of_their_own():
    world = World(owners__running=1, owners__queued=2)
    for uid, owner in [("a", 7), ("b", 7), ("c", 8), ("d", None), ("e", None)]:
        world.add(uid, owner=owner)
    assert world.begin() == [("a",), ("c",), ("d",), ("e",)]
    assert world.obstacle("b") == "another run of user 7 to end (owners.running: 1)"
    world.end("a")
    assert world.begin() == [("b",)]
    with world.queue.place(owner=7):
        world.add("f", owner=7)
    with (
        world.queue.place(owner=7),
        pytest.raises(TryAgain, match="user 7 has 2 queued runs"),
        world.queue.place(owner=7),
    ):
        pass
    with world.queue.place(owner=8), world.queue.place(owner=None):
        pass
    with pytest.raises(UsageError, match="these are 3 runs"), world.queue.place(3, owner=8):
        pass


def test_the_configuration_counts_and_else_what_is_there(monkeypatch):
    assert capacity(configured(machine__gpus=["2", "GPU-1"]).machine).gpus == ("2", "GPU-1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5,")
    found = capacity(config.MachineConfig())
    assert found.gpus == ("3", "5")
    assert found.cpus >= 1
    assert found.memory > 1 << 20
    world = World()
    world.sharing.apply(configured(machine__gpus=0, queue_limit=5, owners__running=3))
    assert (world.sharing.machine.capacity.gpus, world.queue.limit) == ((), 5)

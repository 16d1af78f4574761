"""Callables and arguments on their way through Ray's store: what arrives, what is shared, what is refused, what stays."""

from __future__ import annotations

import pickle
import threading
from functools import partial

import pytest

from governor.tasks.pickle_packs import DATA, kind_of
from governor.tasks.pickle_store import PickleStore
from governor.tasks.protocol.values import DEEPEST
from governor.tasks.protocol.wire import Loading
from governor.tasks.runner_process import calls, pickled
from governor.tasks.runner_process.pickled import CACHE_BYTES, FOLDER, fetch
from tests.support.tasks.runner_world import open_world

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def names(harness, world):
    folder = world.sockets / FOLDER
    folder.mkdir(exist_ok=True)
    names = Names(harness.cluster.namespace, folder)
    pickled.serve(folder)
    yield names
    pickled.serve(None)
    names.close()


class Names(PickleStore):
    """Names one thing at a time, and stores it."""

    def name_call(self, call):
        return self._stored(self.name_tasks([call], [{}])).calls[0]

    def name_args(self, args):
        return self._stored(self.name_tasks(["m:a"], [args])).args[0]

    def _stored(self, named):
        for name, data in named.pickles.items():
            self.store(name, data, uses=named.uses[name])
        return named


def nest(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found


async def value(world, call, **fields):
    runs = await world.run(call, **fields)
    assert not runs[0].error, runs[0].traceback
    return [run.value for run in runs] if len(runs) > 1 else runs[0].value


class Counter:
    """An experiment, which changes when it runs."""

    def __init__(self, n):
        self.n = n

    def run(self):
        self.n += 1
        return self.n


class Async:
    async def arun(self, context):
        return context.run_id


async def test_callables_of_every_kind_arrive(world, names):
    offset = 40
    assert await value(world, names.name_call(lambda: offset + 2)) == 42
    assert await value(world, names.name_call(partial(divmod, 9, 2))) == [4, 1]
    assert await value(world, names.name_call(Counter(6))) == 7
    assert await value(world, names.name_call(Counter), args={"n": 8}) == 9
    assert await value(world, names.name_call(Async()), runs=(5,)) == 5
    assert await value(world, names.name_call(Counter(1).run)) == 2
    assert names.name_call("a.b:c") == "a.b:c"


async def test_runs_and_attempts_do_not_see_what_others_did_to_an_object(world, names):
    experiment = Counter(0)
    name = names.name_call(experiment)
    assert await value(world, name, runs=(0, 1, 2)) == [1, 1, 1]
    assert await value(world, name) == 1
    experiment.n = 10
    assert await value(world, names.name_call(experiment)) == 11
    _, key = names.name_args({"items": [0], "extra": {1, 2}})

    def grow(items, extra):
        items.append(1)
        extra.add("new")
        return [len(items), len(extra)]

    assert await value(world, names.name_call(grow), args_key=key, runs=(0, 1)) == [[2, 3], [2, 3]]


async def test_many_are_named_and_each_is_itself(world, names):
    things = [Counter(n) for n in range(2500)]
    named = names.name_many(things, [f"c{n}" for n in range(2500)])
    assert len(set(named)) == 2500
    assert [await value(world, named[n]) for n in (0, 999, 1000, 2499)] == [1, 1000, 1001, 2500]


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"n": 1, "x": 0.5, "s": "ä", "b": b"\0", "none": None, "many": [1, [2, {"k": []}]]},
        {"largest": 2**64 - 1, "smallest": -(2**63)},
        {"deep": nest(DEEPEST - 2)},
    ],
)
async def test_plain_arguments_travel_as_they_are(names, plain):
    assert names.name_args(plain) == (plain, "")


@pytest.mark.parametrize(
    "other",
    [
        {"t": (1, 2)},
        {"n": 2**64},
        {"s": "\udc80"},
        {"d": {"\udc80": 1}},
        {"d": {1: 1}},
        {"deep": nest(DEEPEST + 5)},
        {"o": Counter},
    ],
)
async def test_others_are_pickled_and_arrive_equal(world, names, other):
    args, key = names.name_args(other)
    assert args == {}

    def same(**given):
        return repr(given)

    if "o" not in other:
        assert await value(world, names.name_call(same), args_key=key) == repr(other)


async def test_arguments_that_contain_themselves(world, names):
    endless = []
    endless.append(endless)
    _, key = names.name_args({"endless": endless})
    assert await value(world, names.name_call(lambda endless: endless[0] is endless), args_key=key) is True


class Mute:
    def __repr__(self):
        raise RuntimeError("no")


async def test_what_cannot_be_sent_is_named(names):
    lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"<function .*<lambda> at .* cannot be sent to a runner: TypeError: .*lock"
    ):
        names.name_call(lambda: lock)
    with pytest.raises(TypeError, match=r"\{'lock': <unlocked _thread.lock object at .* cannot be sent"):
        names.name_args({"lock": lock})
    with pytest.raises(TypeError, match="exp-7 cannot be sent to a runner"):
        names.name_many([Counter(1), Counter(lock)], ["exp-6", "exp-7"])
    with pytest.raises(TypeError, match="5 is a int, which cannot be called and has no run"):
        names.name_call(5)
    with pytest.raises(TypeError, match=r"<Mute instance at .* is a Mute, which cannot be called"):
        names.name_call(Mute())
    with pytest.raises(TypeError, match='"f" is not of the form module:attribute'):
        names.name_call("f")


async def test_an_object_whose_own_run_cannot_be_called_is_refused_behind_others_of_its_class(names):
    class Runs:
        def run(self):
            return 1

    runs, hides = Runs(), Runs()
    hides.run = None
    with pytest.raises(TypeError, match="b is a Runs, which cannot be called"):
        names.name_many([runs, hides], ["a", "b"])


async def test_a_name_of_large_things_is_short_and_quick():
    assert len(calls.brief(dict.fromkeys(range(1000), "x" * 1000))) < 2000


async def test_only_the_first_of_a_kind_says_that_it_loads(world, names):
    """The scheduler takes back what waits behind one that loads for long."""

    class Fresh(Counter):
        """No runner has seen it."""

    objects = names.name_many([Fresh(n) for n in range(20)], ["c"] * 20)
    function = names.name_call(lambda x: x.pop())
    keys = [names.name_args({"x": {n}})[1] for n in range(20)]
    runner = await world.ready()
    work_items = [
        *(world.work(each) for each in objects),
        *(world.work(function, args_key=key) for key in keys),
    ]
    world.runners.send(runner, work_items)
    await world.over(runner, work_items[-1])
    loading = [
        each.ticket for each in world.heard.all(runner, Loading) if each.ticket >= work_items[0].ticket
    ]
    assert loading == [work_items[0].ticket, work_items[20].ticket]
    world.give_back(runner)


async def test_what_is_not_there_any_more_fails_with_the_reason(world, names):
    called = names.name_call(lambda: 1)
    assert await value(world, called) == 1
    (over,) = await world.run(called.replace("code/", "code/0"))
    assert "LookupError" in over.error
    assert "its driver has ended" in over.error


async def test_runners_elsewhere_get_what_was_stored_before_and_after_the_first_of_them(harness, tmp_path):
    async with open_world(harness.cluster, tmp_path, unix=False) as elsewhere:
        names = Names(harness.cluster.namespace, tmp_path)
        before, released = names.name_call(lambda: 1), names.name_many([Counter(5)], ["a"])
        (over,) = await elsewhere.run(before)
        assert "is not in Ray's store any more" in over.error
        names.publish()
        names.publish()
        after = names.name_call(lambda: 2)
        assert [await value(elsewhere, name) for name in (before, after, *released)] == [1, 2, 6]
        names.release_names(released)
        names.close()
        for name in (before, after, *released):
            assert (
                pickled.internal_kv._internal_kv_get(name.split("#")[1], namespace=b"governor-tasks") is None
            )


async def test_a_disk_without_room_is_named(names, tmp_path):
    names._folder = tmp_path / "missing"
    with pytest.raises(FileNotFoundError, match="missing"):
        names.name_call(lambda: 1)
    assert not names._references


async def test_equal_things_are_stored_once_until_all_have_released_them(names, monkeypatch):
    first, second = names.name_many([Counter(5)], ["a"]), names.name_many([Counter(5)], ["b"])
    assert first == second
    names.release_names(first)
    assert fetch(second[0]).n == 5
    names.release_names(second)
    monkeypatch.setattr(pickled, "_pickles", pickled._PickleCache())
    with pytest.raises(LookupError):
        fetch(second[0])


async def test_equal_things_that_are_released_together_are_deleted(names):
    first, second = names.name_many([Counter(5)], ["a"]), names.name_many([Counter(5)], ["b"])
    names.release_names([*first, *second])
    assert not names._references


async def test_of_many_tasks_each_gets_its_own_and_few_packs_are_stored(world, names):
    calls = [lambda x, n=n: [n, sum(x)] for n in range(200)]
    args = [{"x": {n}} for n in range(200)]
    named = names.name_tasks(calls, args)
    assert not names._references, "nothing is stored before it is told"
    assert len(named.pickles) == 2
    names._stored(named)
    for n in (0, 7, 199):
        assert await value(world, named.calls[n], args_key=named.args[n][1]) == [n, n]
    names.release(named.uses)
    assert not names._references


async def test_a_function_of_many_tasks_is_pickled_once_and_shared_on_a_runner(world, names):
    def count(stored=[]):  # noqa: B006  # what is shared shows
        stored.append(1)
        return len(stored)

    named = names._stored(names.name_tasks([count] * 50, [{}] * 50))
    assert len(set(named.calls)) == 1
    assert await value(world, named.calls[0], runs=(0, 1, 2)) == [1, 2, 3]


async def test_a_runner_keeps_no_more_than_its_share(names, monkeypatch):
    stored = pickled._PickleCache()
    monkeypatch.setattr(pickled, "_pickles", stored)
    size = CACHE_BYTES // 4
    named = [names.name_call(partial(len, bytes([n]) * size)) for n in range(6)]
    for name in named:
        assert len(fetch(name).args[0]) == size
    assert len(stored._known) == 3


async def test_objects_that_fail_to_load_fail_their_task_only(world, names):
    class Bad:
        def __reduce__(self):
            return (exit, (3,))

        def run(self):
            return 1

    (over,) = await world.run(names.name_call(Bad()))
    assert over.error == "the task called sys.exit(3)"
    assert await value(world, names.name_call(lambda: 1)) == 1


class Linked(Counter):
    def __init__(self, n):
        super().__init__(n)
        self.me = self if n % 2 else None

    def run(self):
        return [self.n, self.me is self]


class Slotted(Counter):
    __slots__ = ("extra",)

    def __init__(self, n):
        super().__init__(n)
        self.extra = n * 10

    def run(self):
        return [self.n, self.extra]


class Stated(Counter):
    def __getstate__(self):
        return {"n": self.n + 100}

    def run(self):
        return [self.n]


class Calling(Counter):
    def __init__(self, n):
        super().__init__(n)
        self.double = lambda: 2 * n

    def run(self):
        return [self.n, self.double()]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Counter, lambda n: n + 1),
        (Linked, lambda n: [n, bool(n % 2)]),
        (Slotted, lambda n: [n, n * 10]),
        (Stated, lambda n: [n + 100]),
        (Calling, lambda n: [n, 2 * n]),
    ],
)
async def test_many_objects_of_a_class_arrive_as_one_does(world, names, kind, expected):
    named = names.name_many([kind(n) for n in range(5)], list("abcde"))
    assert [await value(world, name) for name in named] == [expected(n) for n in range(5)]


@pytest.mark.parametrize("at_once", [True, False])
async def test_an_object_of_a_class_is_pickled_as_the_standard_library_does(names, at_once):
    """From a common start and their attributes: together, or from the third on."""
    packs = names.new_packs()
    things = [Counter([n, {"text": "ä" * n}, (n, None)]) for n in range(5)]
    if at_once:
        packs.add_objects(things, ["c"] * 5)
    else:
        for thing in things:
            packs.add_object(thing, "c")
    found = [pickle.loads(pickled) for pickled in packs._added[DATA].values()]
    assert [type(each) for each in found] == [Counter] * 5
    assert [vars(each) for each in found] == [vars(each) for each in things]


async def test_objects_of_several_classes_and_with_methods_of_their_own_keep_their_order(names):
    packs = names.new_packs()
    things = [Counter(n) if n % 3 else Slotted(n) for n in range(9)]
    things[4].run = threading.active_count
    packs.add_objects(things, list(map(str, range(9))))
    pickles = packs._added[DATA]
    assert [type(pickle.loads(pickles[at])) for at in range(9)] == [type(thing) for thing in things]
    assert packs.kinds == [kind_of(thing) for thing in things]


async def test_the_object_of_many_that_cannot_be_pickled_is_named(names):
    things = [Counter(n) for n in range(9)]
    things[6].lock = threading.Lock()
    with pytest.raises(TypeError, match="label 6 cannot be sent"):
        names.new_packs().add_objects(things, [f"label {n}" for n in range(9)])

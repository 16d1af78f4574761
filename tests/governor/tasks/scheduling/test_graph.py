"""A graph's faults are all found before anything runs."""

from __future__ import annotations

import time

from governor.messages import TaskSpec
from governor.tasks.scheduling.graph import MOST_CYCLES, faults


def task(name: str, *needs: str) -> TaskSpec:
    return TaskSpec(id=name, call="m:f", depends_on=needs)


def said(*tasks: TaskSpec) -> list[tuple[int, str, str]]:
    return [(fault.task_index, fault.field, fault.message) for fault in faults(tasks)]


def test_a_sound_graph_has_no_faults():
    assert said(task("c", "a", "b"), task("a"), task("b", "a")) == []
    assert said() == []


def test_a_duplicate_id_names_the_first_owner():
    assert said(task("a"), task("b"), task("a")) == [(2, "id", 'task id "a" is already used by tasks[0]')]


def test_unknown_and_own_ids_are_found_at_their_place():
    assert said(task("a"), task("b", "a", "ghost", "b")) == [
        (1, "depends_on[1]", 'task "b" depends on "ghost", which is none of the tasks'),
        (1, "depends_on[2]", 'task "b" depends on itself'),
    ]


def test_a_cycle_is_told_in_the_direction_of_depends_on():
    assert said(task("x"), task("a", "x", "b"), task("b", "c"), task("c", "a")) == [
        (1, "depends_on[1]", "the tasks depend on each other in a cycle: a -> b -> c -> a")
    ]


def test_all_faults_come_at_once():
    found = said(
        task("a", "b"), task("b", "a"), task("c", "d"), task("d", "c"), task("e", "ghost"), task("e")
    )
    assert [(index, field) for index, field, _ in found] == [
        (0, "depends_on[0]"),
        (2, "depends_on[0]"),
        (4, "depends_on[0]"),
        (5, "id"),
    ]


def test_cycles_are_listed_up_to_a_limit():
    pairs = [task(f"{n}{side}", f"{n}{other}") for n in range(50) for side, other in ("ab", "ba")]
    assert len(faults(pairs)) == MOST_CYCLES


def test_a_chain_of_ten_thousand_is_fine_and_as_a_ring_it_is_one_fault():
    chain = [task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, 10_000))]
    began = time.process_time()
    assert faults(chain) == []
    [fault] = faults([task("t0", "t9999"), *chain[1:]])
    assert fault.task_index == 0
    assert "(10000 tasks)" in fault.message
    assert time.process_time() - began < 2

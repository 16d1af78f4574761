"""The collector is as it was once the last graph has ended."""

from __future__ import annotations

import gc

import pytest

from governor.tasks.agentlab.garbage import older_objects_spared


@pytest.fixture(autouse=True)
def _unfrozen():
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_older_objects_are_left_out_until_the_last_graph_has_ended():
    first, second = older_objects_spared(), older_objects_spared()
    first.__enter__()
    assert gc.get_freeze_count()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_freeze_count()
    second.__exit__(None, None, None)
    assert not gc.get_freeze_count()


def test_garbage_of_a_graph_is_collected_although_another_begins():
    with older_objects_spared():
        frozen = gc.get_freeze_count()
        garbage = [[] for _ in range(10_000)]
        with older_objects_spared():
            assert gc.get_freeze_count() < frozen + len(garbage)


def test_it_ends_with_a_graph_that_fails():
    with pytest.raises(KeyboardInterrupt), older_objects_spared():
        raise KeyboardInterrupt
    assert not gc.get_freeze_count()


def test_what_the_user_has_frozen_stays_frozen():
    gc.freeze()
    with older_objects_spared():
        pass
    assert gc.get_freeze_count()

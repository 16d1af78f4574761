"""How many connections a limit of open files allows. The bound at work: `test_hostile_peers.py`."""

from __future__ import annotations

import resource

import pytest

from transport.connections import OWN_FILES, UNSEEN, bound_of_each
from transport.errors import TooFewFiles
from transport.open_files import LEAST_FILES, file_limits


@pytest.mark.parametrize("files", [LEAST_FILES, 2_048, 4_096, 20_000, 1_048_576])
def test_the_reserve_is_what_libzmq_accepts_unseen_or_three_quarters(files):
    bound = bound_of_each(files=files, sockets=2, most=10_000)
    reserve = files - OWN_FILES - 2 * bound
    assert reserve >= min(2 * UNSEEN, (files - OWN_FILES) * 3 // 4)
    assert 100 < bound <= 10_000


def test_too_few_files_are_refused_with_the_number_that_is_needed():
    with pytest.raises(TooFewFiles, match="limit of open files is 1023, a broker needs 1024"):
        bound_of_each(files=1_023, sockets=2, most=10_000)


def test_no_limit_is_a_large_one(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert bound_of_each(files=file_limits()[0], sockets=2, most=10_000) == 10_000

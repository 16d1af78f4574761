"""A short soak: nothing fails, and nothing grows. What is in time on a busy machine tells nothing."""

import pytest

from tests.soak.soak import Sample, faults, soak, table

FLAT = Sample(rate=300, p99=0.02, longest=0.1, failed=0, memory=50 << 20, files=300)


def parts(*samples):
    return [("alone", FLAT), *((f"all, {number + 1}", sample) for number, sample in enumerate(samples))]


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (FLAT, ""),
        (FLAT._replace(memory=90 << 20), "memory has grown by 40 MiB"),
        (FLAT._replace(files=700), "descriptors have grown from 300 to 700"),
        (FLAT._replace(rate=100), "the rate has fallen from 300 to 100"),
        (FLAT._replace(p99=0.3), "all, 5: p99 is 0.300 s"),
        (FLAT._replace(failed=1), "all, 5: 1 requests failed"),
    ],
)
def test_what_is_not_flat_is_told(last, wanted):
    found = faults(parts(FLAT, FLAT, FLAT, FLAT, last))
    assert (len(found), wanted in "".join(found)) == (bool(wanted), True)


@pytest.mark.long
@pytest.mark.system
async def test_a_broker_with_keys_stands_strangers_floods_and_slow_readers():
    found = await soak(30.0)
    assert faults(found, in_time=False) == [], table(found)

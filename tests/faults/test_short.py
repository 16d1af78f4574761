"""The short form of the fault campaign: one fault of most kinds, each at another moment."""

from pathlib import Path

import pytest

from tests.faults.campaign import campaign
from tests.faults.ledger import Ledger
from tests.faults.plan import SHORT_FORM, scenario, short_form
from tests.faults.report import findings, table

SEED = 1
INSTANCES = 2


def test_a_scenario_is_a_function_of_its_seed_and_number():
    assert scenario(3, 17) == scenario(3, 17)
    assert len({scenario(3, number) for number in range(200)}) == 200
    faults = [scenario(3, number).fault for number in range(200)]
    assert min(faults.count(fault) for fault in set(faults)) >= 200 // len(set(faults))


@pytest.mark.ray
@pytest.mark.system
@pytest.mark.long
async def test_the_short_campaign_has_no_findings(tmp_path_factory):
    ledger = Ledger(tmp_path_factory.mktemp("faults") / "ledger.sqlite")
    await campaign(short_form(SEED), ledger, root=Path("/tmp"), instances=INSTANCES)
    entries = ledger.entries(SEED)
    ledger.close()
    assert len(entries) == len(SHORT_FORM)
    assert findings(entries) == [], table(entries)

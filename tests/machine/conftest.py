"""`make system-test` plays these, in the folder that GOVERNOR_MACHINE names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.machine import tree
from tests.machine.machine import Machine
from tests.machine.walked_pages import Walk, blocks


def pytest_collection_modifyitems(items):
    reason = tree.missing() if "GOVERNOR_MACHINE" in os.environ else "`make system-test` plays it"
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def machine():
    """Without governor, with its packages beside the source tree."""
    folder = Path(os.environ["GOVERNOR_MACHINE"]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    wheels = tree.packages(folder, blocks()["packages"].content)
    root = tree.fresh(folder, "tree")
    tree.put_source(root / tree.SOURCE)
    shutil.copytree(wheels, root / tree.SOURCE / "wheels")
    console = folder / "console.log"
    console.unlink(missing_ok=True)
    machine = Machine(root, console)
    try:
        machine.boot()
        yield machine
    finally:
        machine.power_off()


@pytest.fixture(scope="module")
def walk(machine):
    walk = Walk(machine)
    walk.done.add("packages")
    return walk

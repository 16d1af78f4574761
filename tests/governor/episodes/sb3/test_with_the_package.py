"""The other tests of this folder, and the example with torch, where Stable-Baselines3 is not installed: with the package from the index."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from governor.run_file import entry_check
from tests.support import from_index

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NEED_IT = [
    HERE,
    ROOT / "tests/examples/test_ppo.py",
    ROOT / "tests/examples/test_stable_baselines3.py",
    ROOT / "tests/system/deaths/test_stable_baselines3.py",
]
INSTALL_SECONDS, TEST_SECONDS = 600, 2700


def test_without_it_check_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "stable_baselines3.py").write_text("raise ImportError('it is not there')")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = entry_check.UserEntry(place=("entry",), kind="agent", target="governor.episodes.sb3:Agent")
    [(_, fault)] = entry_check.faults([entry], folder=tmp_path / "..")
    assert fault == (
        "module 'governor.episodes.sb3' does not import: ImportError: Stable-Baselines3 does not import: "
        "pip install 'run-governor[sb3]' (it is not there) (stable_baselines3.py:1)"
    )


def test_nobody_else_imports_it():
    code = (
        "import sys, governor.episodes.simulation, governor.episodes.agents\n"
        "print('torch' in sys.modules, 'governor.episodes.sb3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


@pytest.mark.long
@pytest.mark.system
@pytest.mark.skipif(find_spec("stable_baselines3") is not None, reason="its tests run by themselves")
@pytest.mark.timeout(INSTALL_SECONDS + TEST_SECONDS)
def test_the_tests_that_need_it(tmp_path):
    folder = tmp_path / "packages"
    from_index.install(
        folder,
        HERE / "requirements.txt",
        what="Stable-Baselines3",
        dependencies=True,
        seconds=INSTALL_SECONDS,
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "600"),
            *("-o", "faulthandler_timeout=595", "-m", "long", *NEED_IT, "-k", "not the_tests_that_need_it"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1",
            "SB3_LOGDIR": str(tmp_path),  # of models that the tests train without us
        },
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]

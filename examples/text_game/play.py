"""Starts a model and a game on free ports, then `governor run` with their addresses: `python examples/text_game/play.py`.

Arguments go to `governor run`. Both servers end with this process, however it ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@contextmanager
def server(script: str) -> Iterator[str]:
    """Its address."""
    program = [sys.executable, str(HERE / script)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process.stdout.readline().strip()  # type: ignore[union-attr]
        process.communicate()


def main() -> int:
    """The exit code of `governor run`."""
    with server("model_server.py") as model, server("game_server.py") as game, TemporaryDirectory() as folder:
        run = yaml.safe_load((HERE / "run.yaml").read_text())
        run["conductors"]["agents"]["player"]["params"]["base_url"] = f"{model}/v1"
        run["conductors"]["environments"]["game"]["entry"] = game
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump(run, sort_keys=False))
        process = subprocess.Popen([sys.executable, "-m", "governor", "run", str(file), *sys.argv[1:]])
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the run, which ends in order
        return process.wait()


if __name__ == "__main__":
    sys.exit(main())

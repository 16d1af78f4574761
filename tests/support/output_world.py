"""Processes whose output is captured, and the lines that are read from their spools."""

import subprocess
import sys
import time

from governor.output import spool
from governor.output.spool_reader import FREED_BYTES, SpoolReader

LONG = (b"x" * 99 + b"\n") * (FREED_BYTES // 100 + 1)
"""More than is freed at once."""
PRELUDE = """
import logging, os, sys, time, warnings
from pathlib import Path
from governor.output import attribution, capture
former = capture.capture(Path(sys.argv[1]), conductor="agent.walker")
episode = attribution.Attribution()
"""


def started(folder, code):
    """A process that runs `code`, which has the names of PRELUDE."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def readers_of(folder, *, lines_per_second=100_000, bytes_per_second=1 << 24):
    rates = {"lines_per_second": lines_per_second, "bytes_per_second": bytes_per_second}
    paths = sorted(path for path in folder.iterdir() if path.suffix[1:] in spool.STREAMS)
    return [SpoolReader(path, **rates) for path in paths]


def numbers(lines):
    return [int(line.text) for line in lines if not line.dropped]


def read_all(reader):
    """All lines that are there; then they count as kept."""
    found = []
    while lines := reader.read(time.time()):
        found += lines
    reader.done()
    return found


def lines_of(folder, code):
    """All lines of a process that runs `code`, by time: its output has been read to its end, and its spools are gone."""
    process = started(folder, code)
    said = process.communicate()
    assert said == (b"", b""), said
    found = [line for reader in readers_of(folder) for line in reader.finish(time.time())]
    assert not list(folder.iterdir())
    return sorted(found, key=lambda line: line.at)


def texts(lines, stream="stdout"):
    return [line.text for line in lines if line.stream == stream]

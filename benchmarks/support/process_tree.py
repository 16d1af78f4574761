"""Processes and memory of a tree, as the kernel counts them: PSS shares each page among those who map it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

MEGA = 1e6


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one process, in MB (10^6 bytes)."""

    pid: int
    name: str
    rss: float
    pss: float


def cpu_seconds(pid: int) -> float:
    """Of a process, to the nanosecond: its CPU clock, as clock_getcpuclockid(3) names it."""
    return time.clock_gettime((~pid << 3) | 2)


def memory(pid: int) -> Memory:
    """Raises FileNotFoundError, ProcessLookupError when the process has gone."""
    proc = Path(f"/proc/{pid}")
    sizes = dict.fromkeys(("Rss", "Pss"), 0.0)
    for line in (proc / "smaps_rollup").read_text().splitlines()[1:]:
        key, value = line.split(":", 1)
        if key in sizes:
            sizes[key] = int(value.split()[0]) * 1024 / MEGA
    return Memory(pid=pid, name=_name(proc), rss=sizes["Rss"], pss=sizes["Pss"])


def _name(proc: Path) -> str:
    """As short as it can be understood: a conductor without its run, a Python process by its program."""
    name = (proc / "comm").read_text().strip()
    if name.startswith("python"):
        command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        programs = {
            "governor.tasks.cluster.head_process": "ray head",
            "resource_tracker": "resource tracker",
            " serve ": "daemon",
        }
        return next((what for mark, what in programs.items() if mark in command), name)
    if name.startswith("ray::") or "." not in name:
        return name
    return name.partition(".")[2].rstrip(".")  # the kernel keeps 15 characters


def tree(root: int) -> list[Memory]:
    """`root` and all below it, those that ended meanwhile left out."""
    found = []
    for pid in (root, *(child.pid for child in psutil.Process(root).children(recursive=True))):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(memory(pid))
    return found


def maps_ray(pid: int) -> bool:
    return "/ray/" in Path(f"/proc/{pid}/maps").read_text()

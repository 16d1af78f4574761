"""The fault campaign: real runs, random faults, and what must hold after each. `make faults` plays it.

    python tests/faults/campaign.py --seed 5 --first 0 --count 1000 [--instances 2] [--table docs/faults.md]

The driver runs outside the daemons' process trees. An instance (a daemon with its folders) plays one scenario after the other: a
daemon that survives serves the next scenario too; one that was killed is started again on the same folders. The folders of an
instance with a finding are kept. The ledger records each scenario: the same command again continues where it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this file is started by its path

from governor.executor import Executor
from tests.faults import faults
from tests.faults.checks import FINE, Seen, judge, left_files, on_record
from tests.faults.instance import Instance
from tests.faults.ledger import Entry, Ledger
from tests.faults.plan import BY_CLIENTS, scenario
from tests.faults.report import findings, page, table
from tests.faults.run_processes import alive, conductors, earlier, registered
from tests.faults.runs import run_file, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from governor.messages import RunEvent
    from tests.faults.plan import Scenario
    from tests.faults.run_processes import RunProcess

HANG_SECONDS: Final = 120.0
GONE_SECONDS: Final = 3.0
DEAD_SECONDS: Final = 1.0
"""A process that must be dead is checked for that long."""
SCENARIOS_PER_INSTANCE: Final = 25
BADLY: Final = frozenset({"finished", "failed"})
SMALL_DISK: Final = frozenset({"disk_full", "inodes_full"})
ALLOWED: Final = {"no_files": BADLY}
"""Outcomes that a fault may cause, with a reason; by default see `checks.FINE`."""


class ScenarioRun:
    """One scenario on one instance."""

    def __init__(self, instance: Instance, chosen: Scenario) -> None:
        self.instance = instance
        self.chosen = chosen
        self.uid = ""
        self.seen = Seen()
        self.news = asyncio.Condition()
        self.received: list[tuple[float, RunEvent]] = []
        self.since = 0.0
        self.log_size = 0
        self.entry = Entry(seed=chosen.seed, number=chosen.number, fault=chosen.fault.name, run=chosen.run)
        self.register = instance.register(f"{chosen.seed}-{chosen.number}")
        self.struck = asyncio.Event()
        self.struck.set()
        """Cleared while the fault is injected."""
        self.restarts = 0
        """Number of daemons after the first."""
        self.orphan_searches: set[asyncio.Task[None]] = set()
        self.orphans: set[RunProcess] = set()

    async def run(self) -> Entry:
        began = time.monotonic()
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await self._play()
        except TimeoutError:
            self.entry.hangs = 1
            self.entry.violations.append(f"hangs: {await self._explain()}")
        self.entry.seconds = round(time.monotonic() - began, 2)
        return self.entry

    async def _play(self) -> None:
        if not self.instance.is_up:
            await self.instance.start()
        restarting = asyncio.create_task(self._restart_daemons())
        playing = asyncio.create_task(self._play_run())
        try:
            await asyncio.wait({restarting, playing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (restarting, playing):
                if task.done():
                    task.result()
        finally:
            restarting.cancel()
            playing.cancel()
            await asyncio.wait({restarting, playing})

    async def _play_run(self) -> None:
        instance, chosen = self.instance, self.chosen
        async with Executor(instance.endpoint, timeout=20.0, patience=HANG_SECONDS) as executor:
            submitting = asyncio.create_task(
                faults.submit(
                    instance, executor, run_file(chosen.run, chosen.run_seed, self.register), chosen
                )
            )
            if self._strikes_before_the_run:
                await self._strike(submitting)
            self.uid = await submitting
            watching = asyncio.create_task(self._watch(executor))
            try:
                if not self._strikes_before_the_run:
                    await self._strike(watching)
                await watching
            finally:
                watching.cancel()
                await asyncio.wait({watching})
            await asyncio.gather(*self.orphan_searches)
            await self._look_for_orphans(self._processes(), "of the run that has ended")
            result = await executor.result(self.uid)
        self.entry.outcome, self.entry.reason = result.outcome, result.reason
        recorded, damage = on_record(instance.state / "governor.db", self.uid)
        found = judge(
            uid=self.uid,
            seen=self.seen,
            recorded=recorded,
            damage=damage,
            result=result,
            run_folder=instance.state / "runs" / self.uid,
            whole=whole(chosen.run),
            allowed=ALLOWED.get(chosen.fault.action, FINE),
            untouched=chosen.fault.action in BY_CLIENTS,
        )
        self.entry.lost, self.entry.doubled = len(found.lost), len(found.doubled)
        self.entry.violations += found.all
        self.entry.violations += left_files(instance.runtime, instance.state)
        if not self.entry.skipped:
            self._measure()

    def _measure(self) -> None:
        """Recovery times, with and without Ray's own start: of its head, and from the start of a task conductor to the first task event."""
        fault, since = self.chosen.fault, self.since
        later = [(at, event) for at, event in self.received if at >= since]
        connects = None
        if faults.is_of_ray(fault):
            connects = next((at for at, event in later if faults.starts(event, "tasks")), None)
        signs = (at for at, event in later if faults.shows_recovery(fault, event))
        back = next((at for at in signs if at >= (connects or since)), None)
        if back is None:
            return
        connects = connects or back
        rays_own = self.instance.ray_start_seconds(since=self.log_size, until=connects) + back - connects
        self.entry.recovery_with_ray = round(back - since, 3)
        self.entry.recovery = round(max(back - since - rays_own, 0.0), 3)

    async def _watch(self, executor: Executor) -> None:
        marks = self.instance.state / "runs" / self.uid / "marks"
        async for event in executor.watch(self.uid):
            self.seen.events.append(event)
            if event.kind == "task.ended":
                size = marks.stat().st_size if marks.exists() else 0
                self.seen.marks[event.data["record"]["task"], event.data["record"]["run"]] = size
            self.received.append((time.monotonic(), event))
            if event.kind == "conductor.ready" and event.data["incarnation"] > 1:
                before = earlier(self.seen.events, self.register, event)
                of = f"of earlier incarnations of {event.data['conductor']}"
                self.orphan_searches.add(asyncio.create_task(self._look_for_orphans(before, of)))
            async with self.news:
                self.news.notify_all()

    def _processes(self) -> list[RunProcess]:
        return [*conductors(self.seen.events).values(), *registered(self.register)]

    async def _look_for_orphans(self, processes: list[RunProcess], of: str) -> None:
        left = set(await alive(processes, within=DEAD_SECONDS)) - self.orphans
        self.orphans |= left
        self.entry.orphans += len(left)
        self.entry.violations += [f"left behind {of}: {each}" for each in sorted(left, key=str)]

    @property
    def _strikes_before_the_run(self) -> bool:
        """The fault is injected during the submit, so that the next daemon may be the first to receive it."""
        return self.chosen.fault.victim == "pristine"

    async def _strike(self, watching: asyncio.Task[Any]) -> None:
        """Injects the fault at its moment, or when the run ends before that."""
        instance, chosen = self.instance, self.chosen
        if not self._strikes_before_the_run:
            due = asyncio.create_task(self._wait_for_moment())
            await asyncio.wait({due, watching}, return_when=asyncio.FIRST_COMPLETED)
            due.cancel()
        await asyncio.sleep(0.0 if chosen.fault.action == "term" else chosen.jitter)  # a state may be short
        if watching.done() and chosen.fault.action != "submit_killed":
            self.entry.skipped = "the run was over"
            return
        self.log_size = instance.log_size
        began = time.monotonic()
        restarts = self.restarts
        self.struck.clear()
        try:
            struck = await faults.strike(instance, self.uid, chosen, watching, self._revive)
        finally:
            self.struck.set()
        self.entry.skipped = struck.skipped
        self.entry.violations += struck.found
        self.since = began
        if chosen.fault.action.startswith("stop"):
            self.since = instance.found_silent(since=self.log_size) or time.monotonic()
        if struck.daemon_dies:
            async with self.news:
                await self.news.wait_for(lambda: self.restarts > restarts)

    async def _revive(self) -> None:
        """In a fault: returns when the next daemon is there."""
        restarts = self.restarts
        self.struck.set()
        async with self.news:
            await self.news.wait_for(lambda: self.restarts > restarts)
        self.struck.clear()

    async def _wait_for_moment(self) -> None:
        fault, seen = self.chosen.fault, self.seen.events
        state = fault.victim if fault.action == "term" else ""

        def has_come() -> bool:
            if state:
                return any(event.data.get("to") == state for event in seen)
            return len(seen) >= self.chosen.after

        async with self.news:
            await self.news.wait_for(has_come)

    async def _restart_daemons(self) -> None:
        """Starts the next daemon after each end, once the fault is over, as a service manager does."""
        instance = self.instance
        while True:
            code = await instance.ended(None)
            if not faults.may_end_daemon(self.chosen.fault):
                self.entry.violations.append(f"the daemon ended with {code}, without a fault that ends it")
            await self.struck.wait()
            left = await instance.gone(GONE_SECONDS)
            self.entry.orphans += len(left)
            self.entry.violations += [f"left behind: {each}" for each in left]
            self.since = time.monotonic()
            await instance.start()
            async with self.news:
                self.restarts += 1
                self.news.notify_all()

    async def _explain(self) -> str:
        with contextlib.suppress(Exception):
            async with Executor(self.instance.endpoint, timeout=5.0, patience=0.0) as executor:
                explanation = await executor.explain(self.uid)
                return "; ".join(line.what for line in explanation.lines)
        return "the daemon does not answer" if self.instance.is_up else "the daemon is down"


async def play(instance: Instance, chosen: Scenario) -> Entry:
    """Plays one scenario. Afterwards no part of the run is active; the daemon may still run."""
    entry = await ScenarioRun(instance, chosen).run()
    instance.step_clock(0.0)
    return entry


async def campaign(scenarios: Iterable[Scenario], ledger: Ledger, *, root: Path, instances: int = 1) -> None:
    """Plays all scenarios, on that many instances side by side."""
    coming = iter(scenarios)
    async with asyncio.TaskGroup() as group:
        for _ in range(instances):
            group.create_task(InstanceSeries(ledger, root=root).play(coming))


class InstanceSeries:
    """One instance after the other: a new one replaces one that has ended."""

    def __init__(self, ledger: Ledger, *, root: Path) -> None:
        self._ledger = ledger
        self._root = root
        self._instance: Instance | None = None
        self._left = 0

    async def play(self, coming: Iterator[Scenario]) -> None:
        """Plays scenarios until there are none left; several tasks may share the iterator."""
        try:
            for chosen in coming:
                entry = await self._play(chosen)
                self._ledger.write(entry)
                result = "; ".join(entry.violations) or entry.skipped or "fine"
                print(
                    f"{entry.seed}/{entry.number} {entry.fault}, {entry.run}: {entry.outcome} in {entry.seconds:.1f} s, "
                    f"back after {entry.recovery}: {result}",
                    flush=True,
                )
        finally:
            await self._close_instance(keep=False)

    async def _play(self, chosen: Scenario) -> Entry:
        entry = Entry(seed=chosen.seed, number=chosen.number, fault=chosen.fault.name, run=chosen.run)
        small = chosen.fault.action in SMALL_DISK
        if small and not may_mount():
            entry.skipped = "no right to mount"
            return entry
        if self._instance is None or not self._left or small:
            await self._close_instance(keep=False)
            self._instance = Instance(
                Path(tempfile.mkdtemp(prefix=f"gf{chosen.number}-", dir=self._root)), small_disk=small
            )
            self._left = 1 if small else SCENARIOS_PER_INSTANCE
        self._left -= 1
        try:
            entry = await play(self._instance, chosen)
        except Exception as error:  # noqa: BLE001  # any error is a finding
            entry.violations.append(f"{type(error).__name__}: {error}")
        if entry.violations:
            await self._close_instance(keep=True)
        elif not self._left:
            left = await self._close_instance(keep=False)
            entry.violations += left
            entry.orphans += len(left)
        return entry

    async def _close_instance(self, *, keep: bool) -> list[str]:
        """Ends the instance. Returns the processes that are alive 3 s after the daemon's end."""
        instance, self._instance = self._instance, None
        if instance is None:
            return []
        try:
            with contextlib.suppress(TimeoutError, psutil.Error):
                await instance.stop()
            left = await instance.gone(GONE_SECONDS)
        finally:
            instance.close()
        if keep or left:
            print(f"kept: {instance.folder}", flush=True)
        else:
            await asyncio.to_thread(shutil.rmtree, instance.folder)
        return [f"left behind: {each}" for each in left]


def may_mount() -> bool:
    """Whether this process may mount: a container may forbid it even to root."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--fault", action="append", help="those of this name alone; may be given again")
    parser.add_argument("--instances", type=int, default=1, help="instances side by side")
    parser.add_argument("--ledger", type=Path, default=Path("faults.sqlite"))
    parser.add_argument("--again", action="store_true", help="play also what is in the ledger already")
    parser.add_argument("--table", type=Path, help="write the table of the ledger there")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="parent folder of the instances' folders",
    )
    chosen = parser.parse_args(arguments)
    ledger = Ledger(chosen.ledger)
    done = set() if chosen.again else ledger.numbers(chosen.seed)
    numbers = [n for n in range(chosen.first, chosen.first + chosen.count) if n not in done]
    scenarios = (scenario(chosen.seed, number) for number in numbers)
    if chosen.fault is not None:
        scenarios = (each for each in scenarios if each.fault.name in chosen.fault)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(campaign(scenarios, ledger, root=chosen.root, instances=chosen.instances))
    entries = ledger.entries(chosen.seed)
    ledger.close()
    print(table(entries))
    found = findings(entries)
    print("\n".join(found))
    if chosen.table is not None:
        chosen.table.write_text(page(entries, seed=chosen.seed, instances=chosen.instances))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

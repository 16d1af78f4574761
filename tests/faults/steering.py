"""A random sequence of control verbs on a run, with kills of the daemon between them, beside a model of what must follow."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from governor.errors import AlreadyEnded, RunFileError, TryAgain, UsageError
from governor.executor import Executor
from tests.faults.instance import signal_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from governor.messages import RunStatus
    from tests.faults.instance import Instance

VERBS: Final = (
    *("pause", "pause", "hard pause", "continue", "continue", "kill"),
    *("requeue", "drain", "undrain", "set", "set"),
)
LONGEST: Final = 8
"""Verbs of a sequence, and its end."""
AGREES_SECONDS: Final = 20.0
"""A run moves between slot and queue meanwhile."""
LOOK_SECONDS: Final = 0.3


@dataclass
class Steered:
    """`kills` of the daemon; `verbs` that were answered. `found`: violations."""

    kills: int = 0
    verbs: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


async def steer(instance: Instance, uid: str, *, seed: int, revive: Callable[[], Awaitable[None]]) -> Steered:
    """At its end the run goes on. `revive` returns when the next daemon is there."""
    chance = random.Random(seed)  # not for secrets
    model = Model(instance, uid, chance)
    done = model.done
    try:
        for verb in [chance.choice(VERBS) for _ in range(chance.randint(2, LONGEST))]:
            if verb == "kill":
                signal_all(await instance.victims("daemon", uid), signal.SIGKILL)
                done.kills += 1
                await revive()
            else:
                await model.take(verb)
            done.verbs.append(verb)
            done.found += await _lost_values(instance, uid, model.values, after=", ".join(done.verbs))
            done.found += await _differs(instance, uid, paused=model.paused, after=", ".join(done.verbs))
            await asyncio.sleep(chance.random() * 0.5)  # verbs come at any moment
        for verb in ["undrain"] * model.drained + ["continue"] * model.paused:
            await model.take(verb)
    except AlreadyEnded:
        if model.paused and await _began_in_the_pause(instance, uid):
            done.found.append(f"a phase began in a pause, after {', '.join(done.verbs)}")
    finally:
        if model.drained:
            await model.take("undrain")
    return done


@dataclass
class Model:
    """What the daemon and the run have been told, and so should be."""

    instance: Instance
    uid: str
    chance: random.Random
    done: Steered = field(default_factory=Steered)
    paused: bool = False
    drained: bool = False
    values: dict[str, Any] = field(default_factory=dict)

    async def take(self, verb: str) -> None:
        instance, uid, done = self.instance, self.uid, self.done
        match verb:
            case "requeue":
                await _requeue(instance, uid, self.chance)
            case "set":
                await _set(instance, uid, self.chance, self.values, done)
            case "drain" | "undrain":
                self.drained = await _drain(instance, verb, done, drained=self.drained)
            case _:
                self.paused = await _command(instance, uid, verb, done, paused=self.paused)


async def _began_in_the_pause(instance: Instance, uid: str) -> bool:
    """Of a run that has ended in a pause: what was at work then may have been all that was left of it."""
    async with Executor(instance.endpoint, patience=AGREES_SECONDS) as executor:
        kinds = ("run.pause_requested", "phase.started")
        last = [event.kind async for event in executor.watch(uid, follow=False, kinds=kinds)][-1]
    return last == "phase.started"


async def _drain(instance: Instance, verb: str, done: Steered, *, drained: bool) -> bool:
    """Whether the daemon is drained now. Sent twice: the second time it changes nothing."""
    async with Executor(instance.endpoint, patience=AGREES_SECONDS) as executor:
        state = (await executor.status()).state
        if state != ("drained" if drained else "serving"):
            done.found.append(f"{verb} after {', '.join(done.verbs) or 'nothing'}: the daemon is {state}")
        for expected in (drained == (verb == "undrain"), False):
            changed = (await (executor.drain("steered") if verb == "drain" else executor.undrain())).changed
            if changed != expected:
                done.found.append(f"{verb} after {', '.join(done.verbs) or 'nothing'}: changed is {changed}")
    return verb == "drain"


async def _requeue(instance: Instance, uid: str, chance: random.Random) -> None:
    """An episode that is at work, perhaps."""
    async with Executor(instance.endpoint, patience=AGREES_SECONDS) as executor:
        [run] = (await executor.status(uid)).runs
        with suppress(TryAgain, UsageError):  # it is not at work, or its phase has no episodes
            await executor.requeue(uid, episode=run.episodes_ended + chance.randrange(3), reason="steered")


async def _set(
    instance: Instance, uid: str, chance: random.Random, values: dict[str, Any], done: Steered
) -> None:
    """Other limits, and often workers of the phase at work: its simulation is replaced. Sent twice."""
    wanted: dict[str, Any] = {"limits.wall_clock": float(chance.randint(1000, 9000))}
    async with Executor(instance.endpoint, patience=AGREES_SECONDS) as executor:
        [run] = (await executor.status(uid)).runs
        if run.phase and chance.random() < 0.7:
            wanted[f"{run.phase}.simulate.workers"] = chance.choice([1, 2])
        for again in (False, True):
            with suppress(
                TryAgain, UsageError, RunFileError
            ):  # on its way, the next phase, or one without episodes
                changed = (await executor.set(uid, wanted)).changed
                values |= {"limits.wall_clock": wanted["limits.wall_clock"]}
                if again and changed:
                    done.found.append(f"set twice after {', '.join(done.verbs)}: changed is True")


async def _lost_values(instance: Instance, uid: str, values: dict[str, Any], *, after: str) -> list[str]:
    """What was set and does not hold: setting it again would change something."""
    async with Executor(instance.endpoint, patience=AGREES_SECONDS) as executor:
        with suppress(TryAgain):
            found = await executor.set(uid, values, dry_run=True)
            return [f"after {after}: {each.key} is {each.before!r}" for each in found.values]
    return []


async def _command(instance: Instance, uid: str, verb: str, done: Steered, *, paused: bool) -> bool:
    """Whether the run is paused now. Sent twice: the second time it changes nothing."""
    for expected in (paused == (verb == "continue"), False):
        changed = await _sent(instance, uid, verb)
        if changed != expected and verb != "hard pause":  # of a paused run in a slot that is a change
            done.found.append(f"{verb} after {', '.join(done.verbs) or 'nothing'}: changed is {changed}")
    return verb != "continue"


async def _sent(instance: Instance, uid: str, verb: str) -> bool:
    """Sent again while the run is between queue and slot."""
    async with (
        asyncio.timeout(AGREES_SECONDS),
        Executor(instance.endpoint, patience=AGREES_SECONDS) as executor,
    ):
        while True:
            try:
                if verb == "continue":
                    return (await executor.continue_(uid)).changed
                return (await executor.pause(uid, "steered", hard=verb == "hard pause")).changed
            except TryAgain:
                if (await executor.status(uid)).runs[0].outcome is not None:
                    raise AlreadyEnded(uid, "meanwhile") from None
                await asyncio.sleep(LOOK_SECONDS)


async def _differs(instance: Instance, uid: str, *, paused: bool, after: str) -> list[str]:
    """How the run differs from the model: in what its status says, or by episodes and tasks that end in a pause."""
    async with Executor(instance.endpoint, patience=AGREES_SECONDS) as executor:
        before: RunStatus | None = None
        for _ in range(int(AGREES_SECONDS / LOOK_SECONDS)):
            [run] = (await executor.status(uid)).runs
            if run.outcome is not None:
                raise AlreadyEnded(uid, run.outcome)
            if run.paused == paused and (
                not paused or (before is not None and _ended(run) == _ended(before))
            ):
                return []
            before = run if run.paused == paused else None
            await asyncio.sleep(LOOK_SECONDS)
    return [f"after {after}: paused is {run.paused} in state {run.state}, {_ended(run)} ended"]


def _ended(run: RunStatus) -> int:
    return run.episodes_ended + run.tasks_ended

"""Conditions of the user's own where a language model plays: what they ask for while environments start, in real processes.

What does not depend on environments is played in each transport by `tests/governor/episodes/test_user_conditions.py`.
"""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from governor.episodes.text.environments.process import TextProcess
from governor.messages import EpisodeEnded, FlowReport, Until
from tests.support.language_models.text_phases import SECONDS, steps_of, talking
from tests.support.language_models.text_world import TextWorld
from tests.support.living import lives

WALK = "tests.support.user_code.text_walks:Walk"
SEEDED = "tests.support.user_code.text_walks:Seeded"


def every(episodes, answer):
    return (Until(entry="conditions_world:Every", params={"episodes": episodes, "answer": answer}),)


@pytest.fixture
async def world():
    async with TextWorld() as made:
        yield made


class Starts:
    """The starts of environments, in their order. The third one `is_due` when its process is there, and lasts until `let_go`."""

    def __init__(self):
        self.processes = []
        self.is_due, self._go = threading.Event(), threading.Event()
        self.begun = []

    def let_go(self):
        self._go.set()

    async def start(self, started, *given, **named):
        number = len(self.processes)
        self.processes.append(None)
        self.processes[number] = made = await started(*given, **named)
        if number == 2:
            self.is_due.set()
            try:
                await asyncio.to_thread(self._go.wait, SECONDS)
            except asyncio.CancelledError:
                await made.aclose()
                raise
        return made

    def number_of(self, process):
        return self.processes.index(process)


@pytest.fixture
def starts(monkeypatch):
    made, started, begin = Starts(), TextProcess.started, TextProcess.begin

    async def begin_and_note(process, **fields):
        made.begun.append((fields["episode"], made.number_of(process)))
        await begin(process, **fields)

    async def start(*given, **named):
        return await made.start(started, *given, **named)

    monkeypatch.setattr(TextProcess, "started", start)
    monkeypatch.setattr(TextProcess, "begin", begin_and_note)
    yield made
    made.let_go()


async def answered_during_a_start(harness, world, starts, answer):
    """Two workers; the third episode waits for its environment while the second one ends, with this `answer`."""

    async def gate(body):
        if (
            len(world.asked) == 2
        ):  # the second episode waits for the first one's end, and for the start after it
            await asyncio.to_thread(starts.is_due.wait, SECONDS)

    world.gate = gate
    controller = await harness.start("simulation")
    made = talking(world.llm, entry=WALK, environment={"steps": 1})
    command = harness.command(episodes=6, workers=2, until=every(2, answer), **made)
    await controller.perform(command)
    link = harness.links["simulation"]
    await asyncio.wait_for(link.next(FlowReport), SECONDS)
    assert [event.flow for event in link.events if isinstance(event, FlowReport)] == [answer]
    return controller, command


@pytest.mark.parametrize("answer", ["PAUSE", "RESTART"])
async def test_an_episode_whose_environment_still_starts_does_not_begin(harness, world, starts, answer):
    controller, command = await answered_during_a_start(harness, world, starts, answer)
    starts.let_go()
    with pytest.raises(TimeoutError):
        await harness.end(seconds=0.3)
    assert sorted(episode for episode, _ in starts.begun) == [0, 1]
    link = harness.links["simulation"]
    told = len(link.events)
    await controller.perform(command)
    await asyncio.wait_for(link.next(FlowReport, after=told), SECONDS)
    begun = sorted(episode for episode, _ in starts.begun)
    assert begun[:3] == [0, 1, 2]
    assert len(begun) in {4, 5}, "episode 3 may still be starting when 4 has ended"


async def test_a_reset_makes_an_environment_anew_that_is_just_starting(harness, world, starts):
    await answered_during_a_start(harness, world, starts, "RESET")
    starts.let_go()
    records, end = await harness.end(seconds=SECONDS)
    assert (len(records), end.failures) == (6, 0)
    assert 2 not in [number for _, number in starts.begun], "it was built before the answer"
    assert sorted(episode for episode, _ in starts.begun) == [*range(6)]


async def test_an_episode_that_waits_for_its_id_does_not_begin_in_a_pause(harness, world):
    controller = await harness.start("simulation")
    made = talking(world.llm, entry=world.url, environment={"name": "walk", "ids": ["only"]})
    command = harness.command(episodes=6, workers=3, until=every(2, "PAUSE"), **made)
    await controller.perform(command)
    link = harness.links["simulation"]
    told = 0
    for ended in (2, 4):
        await asyncio.wait_for(link.next(FlowReport, after=told), SECONDS)
        with pytest.raises(TimeoutError):
            await harness.end(seconds=0.3)
        assert sum(isinstance(event, EpisodeEnded) for event in link.events) == ended
        told = len(link.events)
        await controller.perform(command)
    records, end = await harness.end(seconds=SECONDS)
    assert (len(records), end.end) == (6, "max_episodes")


async def test_after_a_restart_the_next_process_goes_on_with_new_environments(harness, world):
    made = talking(world.llm, entry=SEEDED)
    controller = await harness.start("simulation")
    await controller.perform(harness.command(episodes=6, until=every(4, "RESTART"), **made))
    link = harness.links["simulation"]
    await asyncio.wait_for(link.next(FlowReport), SECONDS)
    before = [event.episode for event in link.events if isinstance(event, EpisodeEnded)]
    await asyncio.wait_for(controller.close(), SECONDS)
    records, end = await harness.play(
        episodes=6, until=every(4, "RESTART"), done=tuple(before), incarnation=2, seconds=SECONDS, **made
    )
    assert (end.end, end.failures) == ("max_episodes", 0)
    both = (*before, *records)
    assert [(r.index, r.value) for r in both] == [
        (index, 2.0 * (both[index].seed % 100)) for index in range(6)
    ]
    steps = steps_of(harness)
    pids = [{json.loads(state)["pid"] for state in part.env_state} for part in (steps[:8], steps[8:])]
    assert [len(each) for each in pids] == [1, 1]
    assert pids[0] != pids[1]
    assert not any(lives(pid) for each in pids for pid in each)

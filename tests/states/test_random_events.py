"""Whatever happens, in any order: the world keeps its laws and the machine its promises; both stand in `state_world`.

Long stories go deep and are told by their seed; hypothesis' own are short, and it shrinks the one that fails.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from state_scenes import PLAN
from state_world import World

from states import Pristine

BOUND = 400
"""Deeds and events that a fair world may take from anywhere to Pristine: 3 conductors, 3 phases, 6 restarts of each at most."""
CALM = frozenset(
    {"born", "is ready", "ladder", "part begins", "part ends", "part stops", "writes", "removes"}
)
MOODS = {
    "calm": CALM,
    "the disk is full": CALM - {"writes"} | {"does not write"},
    "the disk hangs": CALM - {"writes"},
    "nothing can be killed": CALM - {"ladder"} | {"sticks"},
    "ladders hang": CALM - {"ladder"},
    "nothing is born": CALM - {"born"} | {"not born"},
    "nobody is ready": CALM - {"is ready"},
    "all die": CALM | {"dies"},
    "all fall silent": CALM | {"falls silent"},
    "nothing moves": CALM - {"part ends", "part stops"} | {"stalls"},
    "forkservers die": CALM | {"forkserver dies"},
    "no part is taken": CALM - {"part begins"} | {"part refused"},
    "parts do not end": CALM - {"part ends", "part stops"},
}
"""What a world does that goes on fairly: all that it can do of these comes before the next timer rings."""

PHASES = [PLAN.phases, tuple(replace(phase, on_failure="continue") for phase in PLAN.phases)]
INCARNATIONS = [(), (("simulation", 3), ("agent.gone", 1))]
POLICIES = ["report", "restart", "fail"]
STORIES = 250
"""In each chapter."""

plans = st.builds(
    lambda **changes: replace(PLAN, **changes),
    restarts=st.integers(0, 6),
    wall_clock=st.sampled_from([None, 1.0, 500.0]),
    first_phase=st.integers(0, 3),
    phases=st.sampled_from(PHASES),
    incarnations=st.sampled_from(INCARNATIONS),
    stall_timeout=st.sampled_from([None, 600.0]),
    on_stall=st.sampled_from(POLICIES),
)
picks = st.integers(0, 10_000)


def go_on(world, mood):
    """To Pristine. Gives what it took."""
    took = Counter()
    while world.plan is not None or world.inbox:
        took["steps"] += 1
        assert took["steps"] <= BOUND, f"no end in sight: {world.state.waits_for}, {took}"
        while world.inbox or world.mail:
            took["events"] += 1
            assert took["events"] <= BOUND, f"endless: {world.state.waits_for}, {took}"
            if world.inbox:
                world.deliver()
            else:
                world.deliver_mail(0)
        if world.plan is None:
            break
        deeds = [deed for deed in world.deeds() if deed[0] in MOODS[mood]]
        if mood in {"parts do not end", "nothing moves"} and world.state.name == "running" and not deeds:
            world.abort()
            continue
        rings = [("rings", min(world.timers, key=lambda key: world.timers[key].at))] if world.timers else []
        assert deeds or rings, f"a dead end: {world.state.waits_for}"
        deed = (deeds or rings)[0]
        if mood in {"all die", "forkservers die"}:
            deed = next((d for d in deeds if d[0] in {"dies", "forkserver dies"}), deed)
        took[deed[0]] += 1
        world.do(deed)
    return took


class LongStory:
    """Some hundred steps in one temper: how often what happens is bad, or a timer, or a person."""

    def __init__(self, seed):
        self.random = random.Random(seed)  # a seed makes a failure come again
        self.world = World()
        self.bad = self.random.choice([0.0, 0.05, 0.3])
        self.late = self.random.choice([0.0, 0.01, 0.2])
        self.person = self.random.choice([0.0, 0.005, 0.05])
        self.lag = self.random.choice([0.2, 0.5, 0.9])

    def chance(self, probability):
        return self.random.random() < probability

    def tell(self):
        for _ in range(self.random.randrange(400)):
            self.step()
        go_on(self.world, self.random.choice(sorted(MOODS)))

    def step(self):
        world, pick = self.world, self.random.choice
        state = world.state
        if isinstance(state, Pristine) and not (state.shutdown or state.stuck):
            world.assign(self.plan())
        elif self.chance(self.person):
            pick([world.abort, world.abort, lambda: world.stop(urgent=self.chance(0.5))])()
        elif world.told and self.chance(0.05):
            world.tell_again(self.random.randrange(len(world.told)))
        elif world.mail and self.chance(self.lag):
            world.deliver_mail(self.random.randrange(len(world.mail)))
        elif world.inbox and self.chance(self.lag):
            world.deliver()
        elif world.timers and self.chance(self.late):
            world.do(("rings", pick(sorted(world.timers))))
        elif deeds := world.deeds():
            good = [deed for deed in deeds if deed[0] in CALM and not self.chance(0.3)]
            world.do(pick(deeds if self.chance(self.bad) or not good else good))

    def plan(self):
        return replace(
            PLAN,
            restarts=self.random.randrange(7),
            wall_clock=self.random.choice([None, None, 500.0]),
            first_phase=self.random.choice([0, 0, 0, 1, 2, 3]),
            phases=self.random.choice(PHASES),
            incarnations=self.random.choice(INCARNATIONS),
            stall_timeout=self.random.choice([None, 600.0]),
            on_stall=self.random.choice(POLICIES),
        )


@pytest.mark.parametrize("chapter", range(8))
def test_a_long_story_ends_well(chapter):
    for seed in range(chapter * STORIES, (chapter + 1) * STORIES):
        story = LongStory(seed)
        try:
            story.tell()
        except Exception as error:
            error.add_note(f"replay it: LongStory({seed}).tell()")
            raise
        assert isinstance(story.world.state, Pristine)


class Stories(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()

    def is_free(self):
        state = self.world.state
        return isinstance(state, Pristine) and not state.shutdown and not state.stuck

    @precondition(is_free)
    @rule(plan=plans, well_begun=st.booleans())
    def assign(self, plan, well_begun):
        """Half of the stories begin in Running, or they would seldom come that far."""
        self.world.assign(plan)
        if well_begun:
            for verb in ("born", "is ready"):
                for deed in [deed for deed in self.world.deeds() if deed[0] == verb]:
                    self.world.do(deed)
            self.hear_all()

    @precondition(lambda self: self.world.plan)
    @rule(pick=picks)
    def something_happens(self, pick):
        deeds = self.world.deeds()
        if deeds:
            self.world.do(deeds[pick % len(deeds)])

    @precondition(lambda self: self.world.plan)
    @rule(pick=picks)
    def something_good_happens(self, pick):
        deeds = [deed for deed in self.world.deeds() if deed[0] in CALM]
        if deeds:
            self.world.do(deeds[pick % len(deeds)])

    @precondition(lambda self: self.world.stuck_processes)
    @rule()
    def all_that_was_left_behind_is_gone(self):
        """Then the slot is free again."""
        while self.world.stuck_processes:
            self.world.do(("goes at last", self.world.stuck_processes[0]))
        self.hear_all()
        assert isinstance(self.world.state, Pristine)
        assert not self.world.state.stuck

    @precondition(lambda self: self.world.timers)
    @rule(pick=picks)
    def time_passes(self, pick):
        """Any timer: one that is long due may ring after one that was set later."""
        self.world.do(("rings", sorted(self.world.timers)[pick % len(self.world.timers)]))

    @precondition(lambda self: self.world.inbox)
    @rule()
    def hear(self):
        self.world.deliver()

    @precondition(lambda self: self.world.inbox or self.world.mail)
    @rule()
    def hear_all(self):
        while self.world.inbox or self.world.mail:
            if self.world.inbox:
                self.world.deliver()
            else:
                self.world.deliver_mail(0)

    @precondition(lambda self: self.world.mail)
    @rule(pick=picks)
    def a_letter_comes(self, pick):
        self.world.deliver_mail(pick % len(self.world.mail))

    @precondition(lambda self: self.world.told)
    @rule(pick=picks)
    def a_letter_comes_again(self, pick):
        self.world.tell_again(pick % len(self.world.told))

    @rule()
    def abort(self):
        self.world.abort()

    @rule(urgent=st.booleans())
    def stop(self, urgent):
        self.world.stop(urgent=urgent)

    @rule(mood=st.sampled_from(sorted(MOODS)))
    def the_world_goes_on(self, mood):
        go_on(self.world, mood)
        assert isinstance(self.world.state, Pristine)

    def teardown(self):
        go_on(self.world, "calm")
        assert isinstance(self.world.state, Pristine)


class TestStories(Stories.TestCase):
    settings = settings(
        stateful_step_count=40,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

"""Random sequences of events: the world obeys its laws and the machine its guarantees; both are in `state_world`.

Long sequences go deep and are reproducible by their seed; those of hypothesis are short, and it shrinks one that
fails.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from states import Pristine
from tests.states.state_scenes import PLAN
from tests.states.state_world import World

BOUND = 400
"""Options and events that a fair world may need from any state to Pristine: 3 conductors, 3 phases, 6 restarts of
each at most.
"""
CALM = frozenset(
    {"starts", "is ready", "ladder", "part begins", "part ends", "part stops", "retires", "writes", "removes"}
)
MOODS = {
    "calm": CALM,
    "the disk is full": CALM - {"writes"} | {"does not write"},
    "the disk hangs": CALM - {"writes"},
    "nothing can be killed": CALM - {"ladder"} | {"sticks"},
    "ladders hang": CALM - {"ladder"},
    "nothing starts": CALM - {"starts"} | {"does not start"},
    "none gets ready": CALM - {"is ready"},
    "all exit": CALM | {"exits"},
    "all fall silent": CALM | {"falls silent"},
    "nothing moves": CALM - {"part ends", "part stops"} | {"stalls"},
    "forkservers exit": CALM | {"forkserver exits"},
    "no part is taken": CALM - {"part begins"} | {"part refused"},
    "parts do not end": CALM - {"part ends", "part stops"},
    "conditions ask": CALM | {"asks"},
}
"""What may happen in a fair world: all of these come before the next timer fires."""

PHASES = [PLAN.phases, tuple(replace(phase, on_failure="continue") for phase in PLAN.phases)]
INCARNATIONS = [(), (("simulation", 3), ("agent.gone", 1))]
POLICIES = ["report", "restart", "fail"]
SEQUENCES = 250
"""Sequences in each chapter."""

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


def run_to_the_end(world, mood):
    """Runs the world until Pristine; returns the number of each option."""
    took = Counter()
    while world.plan is not None or world.inbox:
        took["steps"] += 1
        assert took["steps"] <= BOUND, f"no end in sight: {world.state.waits_for}, {took}"
        if world.is_paused:
            world.go_on()
        while world.inbox or world.mail:
            took["events"] += 1
            assert took["events"] <= BOUND, f"endless: {world.state.waits_for}, {took}"
            if world.inbox:
                world.deliver()
            else:
                world.deliver_mail(0)
        if world.plan is None:
            break
        options = [option for option in world.options() if option[0] in MOODS[mood]]
        endless = {"parts do not end", "nothing moves", "ladders hang"}
        if mood in endless and world.state.name == "running" and not options:
            world.abort()
            continue
        timer = [("fires", min(world.timers, key=lambda key: world.timers[key].at))] if world.timers else []
        assert options or timer, f"a dead end: {world.state.waits_for}"
        option = (options or timer)[0]
        if mood in {"all exit", "forkservers exit"}:
            option = next((d for d in options if d[0] in {"exits", "forkserver exits"}), option)
        if mood == "conditions ask":
            asks = [one for one in options if one[0] == "asks"]
            option = asks[world.pids % len(asks)] if asks else option
        took[option[0]] += 1
        world.do(option)
    return took


class LongSequence:
    """Some hundred random steps with fixed probabilities of faults, timers and commands."""

    def __init__(self, seed):
        self.random = random.Random(seed)  # a seed makes a failure come again
        self.world = World()
        self.bad = self.random.choice([0.0, 0.05, 0.3])
        self.late = self.random.choice([0.0, 0.01, 0.2])
        self.command = self.random.choice([0.0, 0.005, 0.05])
        self.lag = self.random.choice([0.2, 0.5, 0.9])

    def chance(self, probability):
        return self.random.random() < probability

    def run(self):
        for _ in range(self.random.randrange(400)):
            self.step()
        run_to_the_end(self.world, self.random.choice(sorted(MOODS)))

    def step(self):
        world, pick = self.world, self.random.choice
        state = world.state
        if isinstance(state, Pristine) and not (state.shutdown or state.stuck):
            world.assign(self.plan())
        elif self.chance(self.command):
            stop = lambda: world.stop(urgent=self.chance(0.5))  # noqa: E731
            pause = lambda: world.pause(hard=self.chance(0.2))  # noqa: E731
            work = pick([{"episode": 3}, {"task": "fit"}])
            change = lambda: world.change(pick(["cancel", "requeue"]), pick([0, 1, 2]), **work)  # noqa: E731
            limit = {"wall_clock": pick([None, 500.0, 900.0])}
            plan = lambda: world.change_plan(renews=self.chance(0.5), tasks=pick([(), ("fit",)]), **limit)  # noqa: E731
            verbs = [stop, change, plan, *[world.abort, pause, plan] * 2, *[world.go_on] * 3]
            pick(verbs)()
        elif world.sent and self.chance(0.05):
            world.send_again(self.random.randrange(len(world.sent)))
        elif world.mail and self.chance(self.lag):
            world.deliver_mail(self.random.randrange(len(world.mail)))
        elif world.inbox and self.chance(self.lag):
            world.deliver()
        elif world.timers and self.chance(self.late):
            world.do(("fires", pick(sorted(world.timers))))
        elif options := world.options():
            good = [option for option in options if option[0] in CALM and not self.chance(0.3)]
            world.do(pick(options if self.chance(self.bad) or not good else good))

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
def test_a_long_sequence_of_events_ends_well(chapter):
    for seed in range(chapter * SEQUENCES, (chapter + 1) * SEQUENCES):
        sequence = LongSequence(seed)
        try:
            sequence.run()
        except Exception as error:
            error.add_note(f"replay it: LongSequence({seed}).run()")
            raise
        assert isinstance(sequence.world.state, Pristine)


class RandomEvents(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()

    def is_free(self):
        state = self.world.state
        return isinstance(state, Pristine) and not state.shutdown and not state.stuck

    @precondition(is_free)
    @rule(plan=plans, well_begun=st.booleans())
    def assign(self, plan, well_begun):
        """Half of the sequences begin in Running, because few would reach it otherwise."""
        self.world.assign(plan)
        if well_begun:
            for verb in ("starts", "is ready"):
                for option in [option for option in self.world.options() if option[0] == verb]:
                    self.world.do(option)
            self.deliver_all()

    @precondition(lambda self: self.world.plan)
    @rule(pick=picks)
    def something_happens(self, pick):
        options = self.world.options()
        if options:
            self.world.do(options[pick % len(options)])

    @precondition(lambda self: self.world.plan)
    @rule(pick=picks)
    def something_good_happens(self, pick):
        options = [option for option in self.world.options() if option[0] in CALM]
        if options:
            self.world.do(options[pick % len(options)])

    @precondition(lambda self: self.world.stuck_processes)
    @rule()
    def all_that_was_left_behind_is_gone(self):
        """Then the slot is free again."""
        while self.world.stuck_processes:
            self.world.do(("goes at last", self.world.stuck_processes[0]))
        self.deliver_all()
        assert isinstance(self.world.state, Pristine)
        assert not self.world.state.stuck

    @precondition(lambda self: self.world.timers)
    @rule(pick=picks)
    def time_passes(self, pick):
        """Fires any timer: an overdue one may fire after one that was set later."""
        self.world.do(("fires", sorted(self.world.timers)[pick % len(self.world.timers)]))

    @precondition(lambda self: self.world.inbox)
    @rule()
    def deliver(self):
        self.world.deliver()

    @precondition(lambda self: self.world.inbox or self.world.mail)
    @rule()
    def deliver_all(self):
        while self.world.inbox or self.world.mail:
            if self.world.inbox:
                self.world.deliver()
            else:
                self.world.deliver_mail(0)

    @precondition(lambda self: self.world.mail)
    @rule(pick=picks)
    def a_report_comes(self, pick):
        self.world.deliver_mail(pick % len(self.world.mail))

    @precondition(lambda self: self.world.sent)
    @rule(pick=picks)
    def a_report_comes_again(self, pick):
        self.world.send_again(pick % len(self.world.sent))

    @rule()
    def abort(self):
        self.world.abort()

    @rule(hard=st.sampled_from([False, False, True]))
    def pause(self, hard):
        self.world.pause(hard=hard)

    @rule()
    def go_on(self):
        self.world.go_on()

    @rule(renews=st.booleans(), wall_clock=st.sampled_from([None, 1.0, 900.0]))
    def change_plan(self, renews, wall_clock):
        self.world.change_plan(renews=renews, tasks=("fit",), wall_clock=wall_clock)

    @rule(phase=st.integers(0, 2), is_task=st.booleans())
    def change(self, phase, is_task):
        self.world.change("cancel", phase, **({"task": "fit"} if is_task else {"episode": 3}))

    @rule(urgent=st.booleans())
    def stop(self, urgent):
        self.world.stop(urgent=urgent)

    @rule(mood=st.sampled_from(sorted(MOODS)))
    def the_run_ends(self, mood):
        run_to_the_end(self.world, mood)
        assert isinstance(self.world.state, Pristine)

    def teardown(self):
        run_to_the_end(self.world, "calm")
        assert isinstance(self.world.state, Pristine)


class TestRandomEvents(RandomEvents.TestCase):
    settings = settings(
        stateful_step_count=40,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

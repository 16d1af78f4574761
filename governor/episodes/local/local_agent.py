"""An agent in the process of the simulation: it acts and learns for every worker, from phase to phase.

Rules:
1. It is built at the first join, when its spaces are known; a saved state is loaded then.
2. One worker at a time uses it (`holder`); a part with a single worker takes no lock. The lock is released when the
   action has been copied: an agent may return the same array each time.
3. At the end of an episode in train mode its state is saved as `learned` says.
4. With rollouts, a worker that is ahead waits up to `AHEAD_SECONDS` at each step, without the lock: threads take turns of 5 ms, so one
   would have made a whole rollout before another has begun. For one rollout it waits `TOGETHER_SECONDS` at most, so a worker that
   hangs, or plays no more, holds up nobody.
"""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from governor.episodes import spaces
from governor.episodes.agent_calls import AgentCalls
from governor.episodes.agents import AgentSource
from governor.episodes.records import state_file
from governor.episodes.restoring.replay import OUT_OF_ORDER, Restored, enter, restore
from governor.episodes.rules.seeds import agent_seed
from governor.errors import ConductorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.agent_calls import Acted, ActedBatch
    from governor.episodes.context import Context
    from governor.episodes.learned import Learned
    from governor.episodes.records.reports import EpisodeReports
    from governor.episodes.restoring.so_far import PhaseSoFar
    from governor.episodes.rollouts import Rollouts
    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.transition import Episode, Transition
    from governor.messages import Made, StartSimulation

AHEAD_SECONDS: Final = 0.01
TOGETHER_SECONDS: Final = 1.0

T = TypeVar("T")


class ActedWeights:
    """`version` is the version of the weights that chose a worker's last action."""

    version = 0


class Calls(NamedTuple):
    """The methods of the agent for one worker; None for a method that it lacks. Actions are copies in the dtype and shape of their
    space. `act` takes one observation and returns the action and its extras; it raises ValueError and what the agent raises.
    `act_many` takes the batch of several (`spaces.stack`) and the worker of each row, and returns one item for each row: as `act`, or
    the exception of that row. Both take one more argument if the agent `is_masked`: the mask, or a sequence of masks. `act_batch` is from
    `AgentCalls.act_batch_of`. `begin` and `end` take an episode; None if the agent does not want to know. `learns_in` is the method
    that learns, for faults.
    """

    act: Callable[..., Acted]
    learn: Callable[[Transition], Any] | None
    act_many: Callable[..., list[Acted | BaseException]] | None
    weights: Learned | ActedWeights
    begin: Callable[[Episode], Any] | None
    end: Callable[[Episode], Any] | None
    learns_in: str
    act_batch: Callable[..., ActedBatch]


class LocalAgent:
    """Its methods run user code. `holder`, for any thread, is the number of the worker that uses it now, or None."""

    def __init__(
        self, *, name: str, made: Made, seed: int, state_path: Path, context: Context | None = None
    ) -> None:
        self.name = name
        self.holder: int | None = None
        self.builds = 0
        """How often it has been built; `calls` are valid for one build."""
        self._source = AgentSource(
            entry=made.entry,
            params=made.params,
            seed=seed,
            state_path=state_path,
            first_state=made.state,
            context=context,
        )
        self._spaces: tuple[SpaceSpec, SpaceSpec]
        self._learned: Learned | None = None
        """The agent, if it is built."""
        self._calls: AgentCalls
        self._so_far: PhaseSoFar | None = None
        self._restored: Callable[[Restored], None] | None = None
        self._is_out_of_order = False
        self._check: Callable[[], None] = lambda: None
        self._streams: dict[int, set[int]] = {}
        """The streams of steps of each worker, by its number."""
        self._lock = threading.Lock()
        self._rollout_taken = threading.Condition()

    def enter(
        self,
        so_far: PhaseSoFar,
        *,
        restored: Callable[[Restored], None] | None,
        check: Callable[[], None],
    ) -> None:
        """A phase begins or goes on; `restored` gets what was replayed of it, if that is the first one of this process, and not the first
        process of the run. `check` is called often meanwhile.
        """
        self._so_far, self._restored, self._check = so_far, restored, check
        if self._learned is not None:
            goes_on = restored is not None and so_far.trains and self.learns
            self._is_out_of_order = goes_on and not so_far.is_known_to(self._learned.told)
            enter(self._learned, self._calls, so_far)

    def _restore(self, learned: Learned) -> None:
        so_far = self._so_far
        if so_far is None:
            return
        enter(learned, self._calls, so_far)
        if self._restored is not None:
            folder = self._source.state_path.parent.parent
            found = restore(
                learned, self._calls, so_far, known=self._spaces, run_folder=folder, check=self._check
            )
            self._restored(found)

    def join(self, number: int, observation: SpaceSpec, action: SpaceSpec, *, learns_from: int = 1) -> None:
        """In a phase in which it learns from so many streams of steps. Raises ConductorError with one line."""
        with self._lock:
            self.holder = number
            try:
                if self._learned is not None:
                    spaces.require_same(self._spaces, (observation, action), of=f"agent {self.name}")
                    if self._is_out_of_order and self._restored is not None:
                        self._is_out_of_order = False
                        self._restored(Restored(OUT_OF_ORDER))
                else:
                    self._learned = self._source.build(observation, action)
                    self._spaces = (observation, action)
                    self._calls = AgentCalls(self._learned.agent, action)
                    self.builds += 1
                    self._restore(self._learned)
                self._learned.require_streams(learns_from, of=f"agent {self.name!r}")
            finally:
                self.holder = None

    @property
    def needs_info(self) -> bool:
        """Whether its transitions have the environment's info; of an agent that a worker has joined."""
        return self._calls.needs_info

    @property
    def is_masked(self) -> bool:
        """Whether it takes action masks; likewise."""
        return self._calls.is_masked

    def calls(
        self, number: int, *, alone: bool, explore: bool = True, worker: int = 0, player: str = ""
    ) -> Calls:
        """The methods for worker `number` and its stream of steps `worker`, valid for one of the agent's `builds`. A worker that does
        not explore does not learn.
        """
        learned = self._learned
        if learned is None:
            raise ConductorError(f"no worker has joined agent {self.name}")
        made = self._calls
        act = made.act_of(explore=explore, worker=worker, player=player)
        learn: Callable[[Transition], Any] | None = learned.learn if explore else None
        act_many: Callable[..., list[Acted | BaseException]] | None = None
        if made.has_act_many:
            act_many = partial(made.act_many, explore=explore)
        act_batch = made.act_batch_of(explore=explore)
        begin = self._begin if made.hears or learned.rollouts is not None else None
        end = made.end if made.hears_ends else None
        weights: Learned | ActedWeights = learned
        if not alone:
            weights = ActedWeights()
            act = self._with_lock(act, number, weights)
            learn = learn and self._with_lock(learn, number)
            if learn is not None and learned.rollouts is not None:
                learn = self._learn_together(learn, learned.rollouts, number, worker)
            act_many = act_many and self._with_lock(act_many, number, weights)
            act_batch = self._with_lock(act_batch, number, weights)
            begin = begin and self._with_lock(begin, number)
            end = end and self._with_lock(end, number)
        return Calls(act, learn, act_many, weights, begin, end, learned.where, act_batch)

    def _learn_together(
        self, learn: Callable[[Transition], Any], rollouts: Rollouts, number: int, worker: int
    ) -> Callable[[Transition], None]:
        """Rule 4."""
        streams = self._streams.setdefault(number, set())
        streams.add(worker)
        taken, left, seen = self._rollout_taken, TOGETHER_SECONDS, 0

        def learn_and_wait(transition: Transition) -> None:
            nonlocal left, seen
            learn(transition)
            if rollouts.count != seen:
                left, seen = TOGETHER_SECONDS, rollouts.count
                with taken:
                    taken.notify_all()
            elif left > 0 and rollouts.is_ahead(streams):
                began = monotonic()
                with taken:
                    taken.wait_for(lambda: not rollouts.is_ahead(streams), AHEAD_SECONDS)
                left -= monotonic() - began

        return learn_and_wait

    def _begin(self, episode: Episode) -> None:
        if self._learned is not None and episode.explore:
            self._learned.begin(episode)
        self._calls.begin(episode)

    def metrics(self) -> dict[Any, Any]:
        """As `Learned.metrics`."""
        with self._lock:
            return {} if self._learned is None else self._learned.metrics()

    def told_end(self, index: int) -> None:
        """The end of any episode, whatever was learned of it."""
        with self._lock:
            if self._learned is not None:
                self._learned.end_told(index)

    def episode_ended(self, index: int = -1, reports: EpisodeReports | None = None) -> None:
        """The end of an episode in train mode, which will be the next one in `reports`. Raises what its `state_dict` raises, TypeError
        and OSError.
        """
        with self._lock:
            if self._learned is not None:
                if reports is None:
                    self._learned.episode_ended(index)
                else:
                    self._learned.settle(reports.settled)
                    self._learned.episode_ended(index, ticket=reports.added + 1)

    def save(self, *, over: bool = False, settled: bool = False) -> None:
        """As `Learned.save`."""
        with self._lock:
            if self._learned is not None:
                self._learned.save(over=over, settled=settled)

    def copy(self, path: Path) -> None:
        """As `AgentHost.copy`."""
        name = f"agent {self.name!r}"
        with self._lock:
            if self._learned is not None:
                self._learned.copy(path, name=name)
            else:
                state_file.copy(path, saved=self._source.state_path, name=name)

    @property
    def learns(self) -> bool:
        """Whether it is built, and has `learn`."""
        return self._learned is not None and self._learned.learn is not None

    def reload(self) -> bool:
        """Saves its state, and loads it into a second instance; False if it has no state. Raises as `copy`, and as `join`."""
        with self._lock:
            if self._learned is None or not hasattr(self._learned.agent, "state_dict"):
                return False
            self._learned.copy(self._source.state_path, name=f"agent {self.name!r}")
            self._source.make(*self._spaces)
            return True

    def _with_lock(
        self, call: Callable[..., T], number: int, weights: ActedWeights | None = None
    ) -> Callable[..., T]:
        lock, learned = self._lock, self._learned

        def locked_call(*arguments: Any) -> T:
            with lock:
                self.holder = number
                try:
                    if weights is not None and learned is not None:
                        weights.version = learned.version
                    return call(*arguments)
                finally:
                    self.holder = None

        return locked_call


def of_phase(
    command: StartSimulation,
    *,
    run_seed: int,
    run_folder: Path,
    context: Callable[[str], Context] | None = None,
) -> dict[str, LocalAgent]:
    """The agents of a phase by name, not built yet. `context` makes the one of a component by the name of its log."""
    several = len(command.agents) > 1
    return {
        name: LocalAgent(
            name=name,
            made=made,
            seed=agent_seed(run_seed, name) if several else run_seed,
            state_path=run_folder / "agents" / f"{name}.state",
            context=None if context is None else context(f"agent.{name}"),
        )
        for name, made in zip(command.agents, command.made_agents, strict=True)
    }

"""An agent in its process: what it is asked, by which object. All methods run user code; when it learns, `learning` says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from governor import logs
from governor.episodes.agent_calls import AgentCalls
from governor.episodes.context import reports
from governor.episodes.entries import Abandoned
from governor.episodes.remote.agent_episode import AgentEpisode
from governor.episodes.remote.learning import LearnBeside, LearnInStep, current, describe
from governor.episodes.spaces import receiver, sender, stack
from governor.errors import ConductorError
from governor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from governor.episodes.agent_calls import ActedBatch
    from governor.episodes.agents import AgentSource
    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.transition import Episode, Transition

log = logs.get_logger()


class AgentRuntime:
    """One agent, built for these `spaces`. `learned` is what it has learned; `learns`: it has `learn` or `learn_batch`. `calls` are its methods. `working_on` are the
    episodes for which its code runs. `received` makes an observation of what was sent, `sent` what is sent of an action; None where
    both are the same.
    """

    def __init__(
        self,
        source: AgentSource,
        *,
        spaces: tuple[SpaceSpec, SpaceSpec],
        name: str,
        reply: Callable[[bytes, bytes], None],
    ) -> None:
        """`reply` as in `LearnBeside`. Raises ConductorError with one line, as `bind` and `close` do."""
        self.spaces = spaces
        self.working_on: Sequence[AgentEpisode] = ()
        self._method = ""
        self._source = source
        self._name = name
        self._reply = reply
        self.learned = source.build(*spaces)
        self.learns = self.learned.learn is not None
        reports.bind(lambda: current(self.working_on))
        self.received, self.sent = receiver(spaces[0]), sender(spaces[1])
        self.calls = AgentCalls(self.learned.agent, spaces[1])
        self._hears_begins = self.calls.hears or self.learned.rollouts is not None
        self._strategy = LearnInStep(self.learned, self.calls)
        self._bound = 0

    def require_streams(self, workers: int) -> None:
        """As of `Learned`."""
        self.learned.require_streams(workers, of=self._name)

    def bind(self, max_staleness: int) -> None:
        """Sets the bound of staleness, in versions of the weights; all transitions so far are learned first."""
        if max_staleness == self._bound:
            return
        self._strategy.close()
        self._strategy, self._bound = LearnInStep(self.learned, self.calls), 0
        if max_staleness:
            entry = self._source.entry
            if not all(getattr(self.learned.agent, name, None) for name in ("state_dict", "load_state_dict")):
                raise ConductorError(
                    f"agent {entry!r} has no state_dict and load_state_dict: max_staleness needs both"
                )
            actor = AgentCalls(self._source.make(*self.spaces), self.spaces[1])
            try:
                self._strategy = LearnBeside(
                    self.learned,
                    self.calls,
                    actor,
                    bound=max_staleness,
                    name=self._name,
                    reply=self._reply,
                )
            except Exception as error:
                raise ConductorError(reason_of(error).within(f"agent {entry!r}: no snapshot")) from error
        self._bound = max_staleness

    @property
    def learning(self) -> AgentEpisode | None:
        """The episode that is learned beside others; for any thread."""
        return self._strategy.current

    def describe(self) -> str:
        """What its code is doing, as in `exits`."""
        return describe(self._method, self.working_on)

    def act(self, episodes: Sequence[AgentEpisode], *, explore: bool, at_once: bool = False) -> int:
        """Sets the action of each of these episodes, or its fault; returns the version of the weights. `at_once` asks `act_many`, if
        the agent has it.
        """
        many = at_once and self._strategy.actor.has_act_many
        call = partial(self._act_at_once if many else self._act_in_turn, episodes, explore=explore)
        return self._ask(call, episodes, explore=explore)

    def act_batch(
        self, episodes: Sequence[AgentEpisode], observations: NDArray[Any], *, explore: bool
    ) -> tuple[ActedBatch | None, int]:
        """Actions for these rows, each of one episode, and the version of the weights. None with a fault of all."""
        ask, workers = self._strategy.actor.act_batch_of(explore=explore), list(map(_worker_of, episodes))
        found: list[ActedBatch] = []
        version = self._ask(lambda: found.append(ask(observations, workers)), episodes, explore=explore)
        return (found[0] if found else None), version

    def _ask(self, call: Callable[[], object], episodes: Sequence[AgentEpisode], *, explore: bool) -> int:
        self._enter("agent.act", episodes)  # it may wait for the learner, and load a snapshot
        try:
            return self._strategy.act(call, latest=not explore)
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # no snapshot, from user code
            for episode in episodes:
                episode.fail("agent.act", error)
            return 0

    def begin(self, episode: AgentEpisode, *, settled: int = 0) -> None:
        """Tells the agent, if it wants to know; sets the fault of the episode if that fails. `settled` as of `Learned`."""
        self.learned.begin_told(episode.number)
        episode.attempt("agent.state_dict", self.learned.settle, settled)
        if self._hears_begins and episode.told is not None:
            self._enter("agent.begin", (episode,))
            self._strategy.begin(episode, episode.told)

    def tell_end(self, episode: AgentEpisode, over: Episode | None, *, counts: bool) -> None:
        """Tells the agent that an episode is `over`, if it wants to know; `counts` as of `LearnInStep.tell_end`."""
        if self.calls.hears_ends and over is not None:
            self._enter("agent.end", (episode,))
            self._strategy.tell_end(episode, over, counts=counts)

    def learn(self, episode: AgentEpisode, transition: Transition) -> None:
        """As `LearnInStep.learn`."""
        self._enter(self.learned.where, (episode,))
        self._strategy.learn(episode, transition)

    def end(
        self,
        episodes: Sequence[AgentEpisode],
        answer: Callable[[], bytes],
        *,
        session: bytes,
        ticket: int = 0,
    ) -> bytes | None:
        """Ends these episodes when they are learned, and saves the state as `learned` says. As `LearnInStep.when_learned`."""
        self._enter("agent.state_dict", episodes)

        def end() -> bytes:
            for episode in episodes:
                if episode.fault is None:
                    episode.attempt("agent.metrics", self._report, episode)
                if episode.fault is None:
                    ended = partial(self.learned.episode_ended, episode.number, ticket=ticket)
                    episode.attempt("agent.state_dict", ended)
            return answer()

        return self._strategy.when_learned(session, end)

    def _report(self, episode: AgentEpisode) -> None:
        if values := self.learned.metrics():
            prefix = episode.prefix
            named = {f"{prefix}{name}": value for name, value in values.items()} if prefix else values
            reports.add(named, of="metrics()", to=episode.reported)

    def save(self, work: AgentEpisode) -> None:
        """The agent's part in the phase is over: writes what was learned to disk; sets the fault of `work` if that fails."""
        work.attempt("agent.state_dict", partial(self.learned.save, over=True))

    def copy(self, path: Path) -> None:
        """As `Learned.copy`; to be called while no episode is being learned."""
        self.learned.copy(path, name=self._name)

    def close(self) -> None:
        """Learns all queued transitions and writes the state to disk; no other call may follow."""
        self.bind(0)
        last = AgentEpisode(b"")
        last.attempt("agent.state_dict", self.learned.save)
        if last.fault is not None:
            raise ConductorError(last.fault[1].within(f"agent {self._source.entry!r} cannot be saved"))

    def _enter(self, method: str, episodes: Sequence[AgentEpisode]) -> None:
        """Notes that the agent's code begins to run."""
        self._method, self.working_on = method, episodes

    def _act_in_turn(self, episodes: Sequence[AgentEpisode], *, explore: bool) -> None:
        for episode in episodes:
            self._enter("agent.act", (episode,))
            episode.attempt("agent.act", self._act_for, episode, explore)

    def _act_for(self, episode: AgentEpisode, explore: bool) -> None:  # noqa: FBT001  # for `attempt`
        worker, player = _worker_of(episode), episode.player
        act = self._strategy.actor.act_of(explore=explore, worker=worker, player=player)
        episode.action, episode.extras = act(episode.observation, episode.mask)

    def _act_at_once(self, episodes: Sequence[AgentEpisode], *, explore: bool) -> None:
        self._enter("agent.act", episodes)
        observations = stack(self.spaces[0], [episode.observation for episode in episodes])
        workers = [_worker_of(episode) for episode in episodes]
        masks = [episode.mask for episode in episodes] if self.calls.is_masked else []
        found = self._strategy.actor.act_many(observations, workers, masks, explore=explore)
        for episode, acted in zip(episodes, found, strict=True):
            if isinstance(acted, BaseException):
                episode.fail("agent.act", acted)
            else:
                episode.action, episode.extras = acted


def _worker_of(episode: AgentEpisode) -> int:
    return 0 if episode.told is None else episode.told.worker

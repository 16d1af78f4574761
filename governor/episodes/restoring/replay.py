"""What an agent has learned since its saved state, learned again from the record, so that a training goes on as if nothing had been.

Rules:
1. The agent is called as it was: `begin`, for each step `act` and `learn`, `end`, `metrics`, with the recorded observations, rewards and
   ends. `act` draws the same random numbers then, if the saved state has the generator.
2. An action that differs from the recorded one says that the replay is not exact. The recorded one is learned, all the same.
3. Of an evaluation, and of a phase in ``mode: eval``, `act` alone is called; if the first such episode leaves the state as it was,
   the others would, too, and are left out.
4. Where a replay cannot be exact nothing is replayed: the agent goes on from its saved state, and the reason is on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from governor import logs
from governor.episodes import spaces
from governor.episodes.context import reports
from governor.episodes.entries import Abandoned
from governor.episodes.transition import Transition
from governor.errors import ConductorError
from governor.failures import reason_of
from governor.index_ranges import IndexRanges
from governor.messages import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from governor.episodes.agent_calls import AgentCalls
    from governor.episodes.learned import Learned
    from governor.episodes.records.read_back import RecordedEpisode, Step
    from governor.episodes.restoring.so_far import PhaseSoFar
    from governor.episodes.spaces import SpaceSpec
    from governor.episodes.transition import Episode

OUT_OF_ORDER: Final = "it has learned of another phase since"

log = logs.get_logger()


class Restored(NamedTuple):
    """`reason`: why it is not exact, or "". So many `episodes` and `steps` were replayed."""

    reason: str
    episodes: int = 0
    steps: int = 0


class NotExact(Exception):
    """The reason, in one line."""


def obstacle_of(learned: Learned, calls: AgentCalls, phase: PhaseSoFar) -> str:
    """Why what this agent learns in the phase cannot be replayed; "" if it can."""
    if phase.obstacle:
        return phase.obstacle
    if not learned.has_state:
        return "the agent has no state_dict"
    if calls.needs_info:
        return "the agent has needs_info, and infos are not on record"
    if calls.is_masked:
        return "the agent takes action masks, which are not on record"
    return str(getattr(learned.agent, "not_exact", ""))


def enter(learned: Learned, calls: AgentCalls, phase: PhaseSoFar) -> None:
    """The agent has learned what there is of the phase, which begins or goes on."""
    learned.enter(phase.told, exact=not obstacle_of(learned, calls, phase))


def restore(
    learned: Learned,
    calls: AgentCalls,
    phase: PhaseSoFar,
    *,
    known: tuple[SpaceSpec, SpaceSpec],
    run_folder: Path,
    check: Callable[[], None] = lambda: None,
) -> Restored:
    """Brings an agent that was just built, with these spaces `known`, to the end of the last episode on record. `check` is called often
    and may end it by an exception.
    """
    from governor.episodes.records.read_back import EpisodeReader  # noqa: PLC0415  # it imports Arrow

    replay = Replay(learned, calls, phase, known=known, check=check)
    reason = ""
    try:
        missing = replay.missing()
        if missing:
            with reports.discarding(), EpisodeReader(run_folder, phase.name, spaces=known) as reader:
                replay.play(reader.episodes(missing, check=check), missing, reader.last_of)
        reason = replay.differs
    except NotExact as error:
        reason = replay.differs or str(error)
    except ConductorError as error:
        reason = error.reason
    except OSError as error:
        reason = f"its steps cannot be read: {error}"
    enter(learned, calls, phase)
    log.info(
        "agent.restored",
        phase=phase.name,
        exact=not reason,
        reason=reason,
        episodes=replay.episodes,
        steps=replay.steps,
    )
    return Restored(reason, replay.episodes, replay.steps)


class Replay:
    """The replay of one agent; `differs`: where an action was another one, or ""."""

    def __init__(
        self,
        learned: Learned,
        calls: AgentCalls,
        phase: PhaseSoFar,
        *,
        known: tuple[SpaceSpec, SpaceSpec],
        check: Callable[[], None],
    ) -> None:
        self.episodes = self.steps = 0
        self.differs = ""
        self._learned = learned
        self._calls = calls
        self._phase = phase
        self._check = check
        self._encode = spaces.encoder(known[1]) or (lambda action: action)

    def missing(self) -> IndexRanges:
        """The episodes that the saved state has not learned. Raises NotExact."""
        why = obstacle_of(self._learned, self._calls, self._phase)
        if why and not self._is_at_the_beginning():
            raise NotExact(why)
        known = self._saved()
        return IndexRanges() if known is None else _without(self._phase.ended, known)

    def _is_at_the_beginning(self) -> bool:
        """Whether the phase begins with what is saved, or with an agent that has learned nothing: there is nothing to replay."""
        if self._phase.ended or not self._learned.has_state:
            return False
        saved = self._learned.saved()
        return saved is None or bool(saved and saved["phase"] != self._phase.name and saved["over"])

    def _saved(self) -> IndexRanges | None:
        """The episodes of the phase that the saved state has learned; None if that is all of it."""
        phase, saved = self._phase, self._learned.saved()
        if saved is None:
            return IndexRanges()
        if not saved:
            raise NotExact("its saved state does not say what it has learned")
        if phase.name in saved.get("others", ()):
            raise NotExact(OUT_OF_ORDER)
        if saved["phase"] != phase.name:
            if not saved["over"]:
                raise NotExact(f"what the agent learned at the end of phase {saved['phase']!r} was not saved")
            return IndexRanges()
        known, current = IndexRanges(list(saved["ended"])), saved["current"]
        if not _within(known, phase.ended) or (current is not None and current not in phase.ended):
            raise NotExact("its state has learned of episodes that are played again")
        if saved["over"]:
            return None
        self._take_rollout(saved)
        return known

    def _take_rollout(self, saved: dict[str, Any]) -> None:
        if self._learned.rollouts is None or "rollout" not in saved:
            return
        if saved["rollout"] is None:
            raise NotExact("the extras of steps that wait for their rollout cannot be saved")
        self._learned.rollouts.restore(saved["rollout"], self._phase.told_of(0, 0))

    def play(
        self,
        recorded: Iterator[tuple[RecordedEpisode, Iterator[Step]]],
        missing: IndexRanges,
        last_of: Callable[[Any], Any],
    ) -> None:
        """Raises NotExact, ConductorError for spaces, OSError, and what `check` raises."""
        skips = False
        for episode, steps in recorded:
            told = self._phase.told_of(episode.index, episode.seed)
            if not told.explore and skips:
                self.episodes += 1
                continue
            if episode.outcome not in COMPLETE:
                raise NotExact(
                    f"episode {episode.index} is {episode.outcome}: how far the agent had come is not on record"
                )
            if told.explore and episode.last is None:
                raise NotExact(f"the last observation of episode {episode.index} is not on record")
            before = b"" if told.explore else self._state()
            try:
                self._episode(episode, told, steps, last_of)
            except (Abandoned, ConductorError, OSError):
                raise
            except BaseException as error:  # user code, which may also exit
                raise NotExact(str(reason_of(error).within(f"replay of episode {episode.index}"))) from error
            self.episodes += 1
            skips = not told.explore and bool(before) and before == self._state()
        if self.episodes < len(missing):
            raise NotExact(f"{len(missing) - self.episodes} episodes are not in the streams")

    def _episode(
        self,
        episode: RecordedEpisode,
        told: Episode,
        steps: Iterator[Step],
        last_of: Callable[[Any], Any],
    ) -> None:
        calls, learn = self._calls, self._learned.learn if told.explore else None
        act, encode = calls.act_of(explore=told.explore, worker=0), self._encode
        if told.explore:
            self._learned.begin(told)
        calls.begin(told)
        number, value = 0, 0.0
        step = next(steps, None)
        while step is not None:
            self._check()
            following = next(steps, None)
            action, extras = act(step.observation)
            if encode(action) != encode(step.action):
                action = step.action
                self.differs = self.differs or (
                    f"the replayed action of episode {episode.index}, step {number} differs: the state_dict lacks the agent's "
                    "generator or another part of it, or its code is not deterministic"
                )
            value += step.reward
            if learn is not None:
                after = last_of(episode.last) if following is None else following.observation
                learn(
                    Transition(
                        observation=step.observation,
                        action=action,
                        reward=step.reward,
                        next_observation=after,
                        terminated=step.terminated,
                        truncated=step.truncated,
                        episode=episode.index,
                        step=number,
                        seed=episode.seed,
                        extras=extras,
                    )
                )
            number += 1
            self.steps += 1
            step = following
        calls.end(msgspec.structs.replace(told, outcome=episode.outcome, value=value, steps=number))
        if told.explore:
            self._learned.metrics()

    def _state(self) -> bytes:
        """Empty if it cannot be told."""
        try:
            return self._learned.state()
        except Abandoned:
            raise
        except BaseException:  # noqa: BLE001  # user code
            return b""


def _within(some: IndexRanges, of: IndexRanges) -> bool:
    return all(of.count_missing(range(first, end)) == 0 for first, end in some.ranges)


def _without(some: IndexRanges, taken: IndexRanges) -> IndexRanges:
    return IndexRanges.of(index for first, end in some.ranges for index in taken.missing(range(first, end)))

"""What an agent knows of the episodes that it plays at the same time: one stream for each worker (and player).

Observations are batches of one, as the policy sees them: with the wrappers of Stable-Baselines3 (images with channels first,
`VecNormalize`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from governor.episodes.sb3.model import HandedOver
    from governor.episodes.transition import Transition

ALONE: Final = (0, "")
"""The key of the only stream of an agent with one worker and one player."""


@dataclass(eq=False, slots=True)
class Stream:
    """`observation` is the one that the next action, or the one that is under way, answers; None if this object does not know it.
    `original` is the same before `VecNormalize`, `returns` are the discounted rewards that it keeps. `value` and `steps` are the
    return and the steps of the episode so far.
    """

    key: tuple[int, str] = ALONE
    starts: bool = True
    observation: Any = None
    original: Any = None
    returns: Any = None
    acting: bool = False
    value: float = 0.0
    steps: int = 0
    noise: Any = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a stream, of which each array is a batch of one. `info` is what `DummyVecEnv` gives."""

    observation: Any
    following: Any
    reward: Any
    done: Any
    info: dict[str, Any]


class Streams:
    """`count` is how many are to be expected."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._given: HandedOver = model.env.unwrapped
        self._normalize = model.get_vec_normalize_env()
        self._streams: dict[tuple[int, str], Stream] = {}
        self._workers = 1

    @property
    def count(self) -> int:
        return max(self._workers, len(self._streams))

    def of(self, worker: int, player: str = "") -> Stream:
        key = worker, player
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = Stream(key)
        return found

    def begin(self, worker: int, workers: int) -> list[Stream]:
        """An episode of this worker begins; returns its streams whose episode before had no end."""
        if workers != self._workers:  # another phase
            self._workers = workers
            self._streams = {key: each for key, each in self._streams.items() if key[0] < workers}
        own = [each for key, each in self._streams.items() if key[0] == worker]
        cut = [each for each in own if not each.starts]
        for each in own:
            self._restart(each)
        return cut

    def _restart(self, stream: Stream) -> None:
        stream.starts, stream.acting, stream.observation = True, False, None
        stream.value, stream.steps = 0.0, 0

    def see(self, stream: Stream, observation: Any) -> Any:
        """The observation that an action of the stream is to answer. The first one of an episode counts for `VecNormalize`."""
        if stream.acting:  # what was learned since is known to another copy of the agent
            stream.observation, stream.starts = None, False
        if stream.observation is None:
            self._look(stream, observation, update=stream.starts)
        stream.acting = True
        return stream.observation

    def _look(self, stream: Stream, observation: Any, *, update: bool) -> None:
        self._given.set(observation)
        normalize = self._normalize
        if normalize is not None:
            normalize.training = update
        stream.observation = self._model.env.reset()
        if normalize is not None:
            normalize.training = True
            stream.original = normalize.get_original_obs()
            if update or stream.returns is None:
                stream.returns = normalize.returns

    def transformed(self, observation: Any) -> Any:
        """An observation for `predict`, which moves the channels of images itself."""
        self._given.set(observation)
        seen = self._given.observation
        return seen if self._normalize is None else self._normalize.normalize_obs(seen)

    def step(self, stream: Stream, transition: Transition) -> Step:
        """Takes over a step; the stream is at the next observation then, or before its next episode."""
        if stream.observation is None:
            self._look(stream, transition.observation, update=stream.starts)
        before, original = stream.observation, stream.original
        self._given.set(
            transition.next_observation,
            reward=transition.reward,
            terminated=transition.terminated,
            truncated=transition.truncated,
        )
        following, reward, done, infos = self._stepped(
            stream, last=transition.terminated or transition.truncated
        )
        stream.value += transition.reward
        stream.steps += 1
        if done[0]:
            infos[0]["episode"] = {"r": round(stream.value, 6), "l": stream.steps}
            self._restart(stream)
        else:
            stream.starts, stream.acting, stream.observation = False, False, following
        model = self._model
        model._last_obs = before
        model._last_original_obs = original
        return Step(before, following, reward, done, infos[0])

    def _stepped(self, stream: Stream, *, last: bool) -> Any:
        normalize = self._normalize
        if normalize is None:
            return self._model.env.step_wait()
        normalize.returns = stream.returns
        kept = normalize.obs_rms if normalize.norm_obs else None
        if (
            last
        ):  # in SB3's loop the first observation of the next episode stands here: it counts when it comes
            normalize.norm_obs = False
        found: Any = self._model.env.step_wait()
        if last:
            normalize.norm_obs = kept is not None
            found[3][0]["terminal_observation"] = normalize.normalize_obs(found[3][0]["terminal_observation"])
        stream.returns = normalize.returns
        stream.original = normalize.get_original_obs()
        return found


def as_float(value: Any) -> Any:
    """An array of one number, from what `act` has handed over."""
    return np.asarray(value, np.float32).reshape(1)

"""One environment of the pool, or one vector of environments, in a thread of its own: reset and step for the lease holder.

An exception or an invalid value of an environment becomes a `FaultFrame` with place and reason, in one line; in a vector, a
`RowFault` of one slot.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from governor.episodes import exits, spaces
from governor.episodes.arrays import WireError
from governor.episodes.conforming import first_observation, stepper
from governor.episodes.context import reports
from governor.episodes.entries import Abandoned, Environment, make_environment
from governor.episodes.info import reader_of
from governor.episodes.masks import MaskReader
from governor.episodes.metrics import Reported
from governor.episodes.players.assignment import has_players
from governor.episodes.remote import frames, wire
from governor.episodes.remote.environments.hosted_game import HostedGame
from governor.episodes.remote.environments.hosted_vector import HostedVector
from governor.episodes.remote.environments.messages import ALL_SLOTS
from governor.episodes.remote.shared_arrays import Region
from governor.episodes.remote.thread_host import ThreadHost
from governor.episodes.step_info import with_info
from governor.failures import reason_of
from governor.output.attribution import Attribution, episode_fields

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from governor.episodes.context import Context
    from governor.messages import Made


class EnvironmentHost(ThreadHost):
    """`lease` is the identity that may reset and step; the event loop sets it, the thread reads it. `current_slot` is the slot
    whose code runs, `ALL_SLOTS` where all step together, None between two requests; the event loop may read it.
    """

    observation_space: spaces.SpaceSpec
    action_space: spaces.SpaceSpec
    """With several players those of the first one."""

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        made: Made,
        context: Context | None = None,
    ) -> None:
        super().__init__(name=name, path=path)
        self.lease: bytes | None = None
        self.current_slot: int | None = None
        self.players: dict[str, tuple[spaces.SpaceSpec, spaces.SpaceSpec]] = {}
        """The spaces of each of several players."""
        self.turns = False
        self._game: HostedGame | None = None
        self._together: HostedVector | None = None
        self._made = made
        self._context = context
        self._wanted: Any = None
        self._reported = {slot: Reported() for slot in range(made.vector)}
        self._environments: list[Environment | HostedVector] = []
        self._region, self._reader = Region(), b""
        """Of answers, and whose they are."""
        self._episodes: dict[int, int] = {}
        """By slot: the episode of its last reset."""
        self._evaluation = 0
        """That of these episodes."""
        self._method = "reset"
        self._attribution = Attribution(self._current_fields if made.vector > 1 else None)

    def _prepare(self) -> None:
        exits.set_description(self._describe_current)
        self._attribution.bind()
        reports.bind(self._current_episodes)
        self.build()

    def build(self) -> None:
        """For the thread. Raises ConductorError."""
        made = self._made
        if made.vector_mode != "sync":
            self._together = together = HostedVector(made, self._context)
            self._environments = [together]
            self.observation_space, self.action_space = together.observation_space, together.action_space
            return
        self._environments = [
            make_environment(made.entry, made.params, self._context, made.wrappers)
            for _ in range(made.vector)
        ]
        environment = self._environments[0]
        if has_players(environment):
            self._game = HostedGame(environment, entry=made.entry, vector=made.vector)
            self.players, self.turns = self._game.players, self._game.turns
            self.observation_space, self.action_space = next(iter(self.players.values()))
            return
        self.observation_space, self.action_space = spaces.of_environment(environment, entry=made.entry)
        self._blank = spaces.blank(self.observation_space)
        self._observed = spaces.observer(self.observation_space)
        self._sends_encodings = spaces.is_composite(self.observation_space)
        self._received = spaces.receiver(self.action_space)
        self._copied = spaces.duplicator(self.action_space)
        self._want({})

    def _answer(self, peer: bytes, data: bytes) -> bytes | None:
        try:
            request = wire.decode_environment_request(data)
        except WireError:
            return None
        # Before the lease is checked, so a release sees that this request was in time.
        self.current_slot = 0 if self._together is None else ALL_SLOTS
        try:
            if peer != self.lease:
                return wire.encode(wire.FaultFrame(request.number, "environment", "the lease is over"))
            if peer != self._reader:
                self._region.close()
                self._region, self._reader = Region(), peer
            return self._region.encode(self._handle(request))
        except Abandoned:
            raise
        except BaseException as error:  # noqa: BLE001  # user code: whatever it raises is this episode's fault
            resets = isinstance(request, wire.ResetFrame | wire.ResetManyFrame)
            where = "environment.reset" if resets else "environment.step"
            return wire.encode(wire.fault(request.number, where, reason_of(error)))
        finally:
            self.current_slot = None

    def _handle(self, request: wire.EnvironmentRequest) -> frames.WireFrame:
        number = request.number
        match request:
            case wire.StepFrame():
                return wire.SteppedFrame(number, *self._step(0, request.action), self._take(0), self._mask(0))
            case wire.ResetFrame():
                self._attribution.begin(**episode_fields(request.phase, request.episode, request.evaluation))
                self._begin(request, [0], [request.episode])
                if self._game is not None:
                    return self._play(self._game, request)
                return wire.ObservedFrame(number, *self._reset(0, request.seed), self._take(0), self._mask(0))
            case wire.PlayersStepFrame():
                return self._play(self._game, request)
            case wire.ResetManyFrame() | frames.StepTogetherFrame() if self._together is not None:
                return self._handle_all(self._together, request)
            case frames.StepTogetherFrame():
                raise ValueError("its environments do not step together")
            case _:
                return self._handle_many(request)

    def _handle_all(
        self, together: HostedVector, request: wire.ResetManyFrame | frames.StepTogetherFrame
    ) -> frames.SteppedTogetherFrame:
        if request.slots:
            self._begin(request, request.slots, request.episodes)
        if isinstance(request, wire.ResetManyFrame):
            self._method, found = "reset", together.reset(request)
        else:
            self._method, found = "step", together.step(request)
        return frames.SteppedTogetherFrame(
            request.number, **found, reported=reports.take_each(self._reported)
        )

    def _play(
        self, game: HostedGame | None, request: wire.ResetFrame | wire.PlayersStepFrame
    ) -> wire.PlayersSteppedFrame:
        if game is None:
            raise ValueError("it has one player")
        self._method = "reset" if isinstance(request, wire.ResetFrame) else "step"
        return wire.PlayersSteppedFrame(request.number, **game.answer(request), reported=self._take(0))

    def _handle_many(self, request: wire.ResetManyFrame | wire.StepManyFrame) -> wire.SteppedManyFrame:
        stepping = isinstance(request, wire.StepManyFrame)
        if isinstance(request, wire.ResetManyFrame):
            self._begin(request, request.slots, request.episodes)
        if isinstance(request, wire.StepManyFrame):
            inputs = wire.rows_of(self.action_space, request.actions)
        else:
            inputs = request.seeds
        observations, rewards, ends, faults = [], [], [], []
        infos: list[Any] = []
        whole_infos: list[Any] = []
        for row, slot in enumerate(request.slots):
            observation, reward, end, info, whole = self._blank, 0.0, 0, None, None
            self.current_slot = slot
            try:
                if stepping:
                    stepped = self._step(slot, inputs[row])
                    observation, reward, terminated, truncated, info, whole = stepped
                    end = wire.TERMINATED * terminated | wire.TRUNCATED * truncated
                else:
                    observation, info = self._reset(slot, inputs[row])
            except Abandoned:
                raise
            except BaseException as error:  # noqa: BLE001  # as in `_answer`
                where = "environment.step" if stepping else "environment.reset"
                reason = reason_of(error)
                faults.append(frames.RowFault(row, where, str(reason), reason.traceback))
            observations.append(observation)
            rewards.append(reward)
            ends.append(end)
            infos.append(info)
            whole_infos.append(whole)
        reported = [self._take(slot) for slot in request.slots]
        return wire.SteppedManyFrame(
            request.number,
            wire.packed_rows(self.observation_space, observations),
            rewards,
            ends,
            faults,
            infos if self._wanted else None,
            reported if any(reported) else None,
            whole_infos if self._whole_info and stepping else None,
            [self._mask(slot) for slot in request.slots] if self._masks else None,
        )

    def _begin(
        self,
        request: wire.ResetFrame | wire.ResetManyFrame | frames.StepTogetherFrame,
        slots: list[int],
        episodes: list[int],
    ) -> None:
        reports.phase, self._evaluation = request.phase, request.evaluation
        self._episodes |= zip(slots, episodes, strict=False)
        for slot in slots:
            self._take(slot)  # of an attempt that was given up
        if isinstance(request, frames.StepTogetherFrame) or self._together is not None:
            return
        wanted, whole, masked = request.info or {}, request.whole_info, request.masked
        if self._game is not None:
            self._game.want(wanted, masked=masked, informed=whole)
        elif (wanted, whole, masked) != (self._wanted, self._whole_info, bool(self._masks)):
            self._want(wanted, whole=whole, masked=masked)

    def _want(self, wanted: Any, *, whole: bool = False, masked: bool = False) -> None:
        """Makes rows of infos, as of `StartSimulation`, with the `whole` ones beside them where they are wanted; `masked`: reads action
        masks.
        """
        self._wanted, self._whole_info = wanted, whole
        read = reader_of(wanted)
        self._masks = [MaskReader(self.action_space, read) for _ in self._environments] if masked else []
        self._reads: list[Callable[[Any], Any] | None] = [read] * self._made.vector
        if masked:
            self._reads = [reader.read for reader in self._masks]
        self._steppers = [
            stepper(
                environment,
                self._observed,
                copied=self._copied,
                read=with_info(read) if whole else read,
                of=self.observation_space,
            )
            for environment, read in zip(self._environments, self._reads, strict=True)
        ]
        if masked:
            pairs = zip(self._masks, self._steppers, strict=True)
            self._steppers = [reader.stepper(step) for reader, step in pairs]

    def _mask(self, slot: int) -> Any:
        return self._masks[slot].mask if self._masks else None

    def _reset(self, slot: int, seed: int) -> tuple[Any, Any]:
        """The observation as it is sent, and the row of its info."""
        self._method = "reset"
        observation, encoded, row = first_observation(
            self._environments[slot], seed, self._observed, self._reads[slot]
        )
        if self._masks:
            self._masks[slot].note(observation)
        return encoded if self._sends_encodings else observation, row

    def _step(self, slot: int, action: Any) -> tuple[Any, float, bool, bool, Any, Any]:
        """The last items are the row of its info, and the whole one."""
        self._method = "step"
        if self._received is not None:
            action = self._received(action)
        observation, encoded, reward, terminated, truncated, row = self._steppers[slot](action)
        row, whole = row if self._whole_info else (row, None)
        return encoded if self._sends_encodings else observation, reward, terminated, truncated, row, whole

    def _take(self, slot: int) -> Any:
        """What was reported for the episode of this slot since the last answer."""
        reports.finish(self._reported[slot])
        return reports.take(self._reported[slot])

    def _current_episodes(self) -> list[tuple[int, Reported]]:
        slot = self.current_slot
        if slot == ALL_SLOTS:
            return [(episode, self._reported[each]) for each, episode in self._episodes.items()]
        return [] if slot is None else [(self._episodes.get(slot, -1), self._reported[slot])]

    def lease_ended(self) -> None:
        """Nobody resets and steps any more; what is printed from now on is of no episode. For the event loop."""
        self.lease = None
        self._attribution.end()

    def _current_fields(self) -> dict[str, str | int]:
        """As of `attribution`: in a vector, those of the slot whose code runs."""
        episode = self._episodes.get(-1 if self.current_slot is None else self.current_slot)
        return {} if episode is None else episode_fields(reports.phase, episode, self._evaluation)

    def _describe_current(self) -> str:
        slot = self.current_slot
        if slot == ALL_SLOTS:
            return exits.describe(f"environment.{self._method}", [*self._episodes.values()])
        return "" if slot is None else f"environment.{self._method} of episode {self._episodes.get(slot)}"

    def _finish(self) -> None:
        self._attribution.end()
        self.close_environments()

    def close_environments(self) -> None:
        """For the thread."""
        environments, self._environments = self._environments, []
        for environment in environments:
            close = getattr(environment, "close", None)
            if close is not None:
                with suppress(Exception):  # the environment is discarded: an error of its close has no effect
                    close()

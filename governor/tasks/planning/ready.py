"""The queue of sub-tasks that wait for a runner: who goes next.

Rules:
1. The higher priority first; then the earlier batch (`api.sort_batch_id`), training before evaluation of the same
   step; then in the order of submission.
2. Who has waited for `age` seconds goes before all who have not, the longest waiting first: early batches cannot
   starve late ones.
3. What was sent back unharmed goes to the front of its lane, a retry to its end.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

    from governor.tasks.planning.batch import Piece
    from governor.tasks.planning.story import Shape

LaneKey: TypeAlias = tuple[int, tuple[float, int], bool, int]


class _Lanes:
    """The queue of one shape. A lane holds pieces of one batch and priority; it is never empty."""

    __slots__ = ("by_key", "count", "order")

    def __init__(self) -> None:
        self.by_key: dict[LaneKey, deque[Piece]] = {}
        self.order: list[LaneKey] = []
        self.count = 0

    def lane(self, key: LaneKey) -> deque[Piece]:
        lane = self.by_key.get(key)
        if lane is None:
            lane = self.by_key[key] = deque()
            insort(self.order, key)
        return lane

    def close(self, key: LaneKey) -> None:
        del self.by_key[key]
        self.order.remove(key)


class ReadyQueue:
    """Pieces by shape; pinned ones by their place."""

    def __init__(self, *, age: float) -> None:
        self._age = age
        self._shapes: dict[Shape, _Lanes] = {}
        self._pinned: dict[int, deque[Piece]] = {}

    def push(self, piece: Piece, now: float) -> None:
        """Behind those of its lane."""
        piece.ready_at = now
        if piece.pin is not None:
            self._pinned.setdefault(piece.pin, deque()).append(piece)
            return
        lanes = self._of(piece.shape)
        lanes.count += 1
        lanes.lane(piece.lane).append(piece)

    def push_front(self, piece: Piece) -> None:
        """Before those of its lane; it keeps its age."""
        if piece.pin is not None:
            self._pinned.setdefault(piece.pin, deque()).appendleft(piece)
            return
        lanes = self._of(piece.shape)
        lanes.count += 1
        lanes.lane(piece.lane).appendleft(piece)

    def waiting(self, shape: Shape) -> int:
        """How many wait, without the pinned ones."""
        lanes = self._shapes.get(shape)
        return 0 if lanes is None else lanes.count

    def pinned(self, place: int) -> bool:
        return bool(self._pinned.get(place))

    def pins(self) -> list[int]:
        """Places for which something waits."""
        return [place for place, lane in self._pinned.items() if lane]

    def shapes(self) -> list[Shape]:
        """The shapes for which something waits."""
        return [shape for shape, lanes in self._shapes.items() if lanes.count]

    def peek(self, shape: Shape, now: float) -> Piece | None:
        """The piece that `take` would give."""
        lanes = self._shapes.get(shape)
        return lanes.by_key[self._next(lanes, now)][0] if lanes is not None and lanes.count else None

    def take(self, shape: Shape, now: float) -> Piece | None:
        lanes = self._shapes.get(shape)
        if lanes is None or not lanes.count:
            return None
        key = self._next(lanes, now)
        lane = lanes.by_key[key]
        piece = lane.popleft()
        lanes.count -= 1
        if not lane:
            lanes.close(key)
        return piece

    def take_pinned(self, place: int) -> Piece | None:
        lane = self._pinned.get(place)
        return lane.popleft() if lane else None

    def drop(self, order: int, tasks: Collection[str]) -> None:
        """Takes out the pieces of these tasks of the batch with this number."""
        for lane in self._pinned.values():
            self._strip(lane, order, tasks)
        for lanes in self._shapes.values():
            for key in [key for key in lanes.order if key[3] == order]:
                lane = lanes.by_key[key]
                lanes.count -= self._strip(lane, order, tasks)
                if not lane:
                    lanes.close(key)

    def _strip(self, lane: deque[Piece], order: int, tasks: Collection[str]) -> int:
        left = [piece for piece in lane if piece.lane[3] != order or piece.node.spec.id not in tasks]
        gone = len(lane) - len(left)
        if gone:
            lane.clear()
            lane.extend(left)
        return gone

    def _of(self, shape: Shape) -> _Lanes:
        lanes = self._shapes.get(shape)
        if lanes is None:
            lanes = self._shapes[shape] = _Lanes()
        return lanes

    def _next(self, lanes: _Lanes, now: float) -> LaneKey:
        first = lanes.order[0]
        if len(lanes.order) == 1:
            return first
        oldest = min(lanes.order, key=lambda key: lanes.by_key[key][0].ready_at)
        return oldest if now - lanes.by_key[oldest][0].ready_at >= self._age else first

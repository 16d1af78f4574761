"""Values of nested spaces: how they look on record, and hypothesis' strategy of spaces."""

import math
import string

import gymnasium.spaces as gym
import numpy as np
from gymnasium.vector.utils import iterate
from hypothesis import strategies as st

from governor.episodes import trajectories


def on_record(space, value):  # noqa: PLR0911  # one for each kind
    """What `to_pylist` gives of the column."""
    match space:
        case gym.Discrete():
            return int(value)
        case gym.Dict():
            return {str(key): on_record(part, value[key]) for key, part in space.spaces.items()} or None
        case gym.Tuple():
            return {str(at): on_record(part, value[at]) for at, part in enumerate(space.spaces)} or None
        case gym.OneOf():
            chosen, inner = value
            parts = {str(at): None for at in range(len(space.spaces))}
            return {"choice": int(chosen), **parts, str(chosen): on_record(space.spaces[chosen], inner)}
        case gym.Sequence():
            values = iterate(space.stacked_feature_space, value) if space.stack else value
            return [on_record(space.feature_space, one) for one in values]
        case gym.Graph():
            links = None if value.edge_links is None else [link.tolist() for link in value.edge_links]
            edges = None
            if value.edges is not None:
                edges = [
                    on_record(space.edge_space, one) for one in iterate(space.batch_edge_space, value.edges)
                ]
            nodes = [on_record(space.node_space, one) for one in iterate(space.batch_node_space, value.nodes)]
            return {"nodes": nodes, "edges": edges, "edge_links": links}
        case _ if isinstance(value, str):
            return value
        case _:
            return np.asarray(value).ravel().tolist()


def require_recorded(environment, folder, records, *, phase="train"):
    """Steps on record are those of `nested_world.Nested`: it gives the same observations again, and rewards tell of the actions."""
    steps = trajectories.read(folder, phase)
    assert len(steps) == 5 * len(records)
    rows = steps.to_pylist()
    for record in records:
        seen = [on_record(environment.observation_space, one) for one in environment.expected(record.seed)]
        mine = [row for row in rows if row["episode"] == record.index]
        assert [row["observation"] for row in mine] == seen[:-1]
        for row in mine:
            assert math.isclose(row["reward"], recorded_sum(row["action"]), abs_tol=1e-5)


def recorded_sum(value):
    """`nested_world.checksum` of an action on record."""
    if isinstance(value, dict):
        parts = value.values()
        return sum((1 + place) * recorded_sum(one) for place, one in enumerate(parts))
    if isinstance(value, str):
        return sum(map(ord, value)) / 128
    return float(sum(value)) if isinstance(value, list) else float(value)


DTYPES = (np.float32, np.float64, np.uint8, np.int32)
CHARACTERS = (string.ascii_lowercase, "é¥😀", '"\\\n')
KEYS = ("", "a", "b.c", "ü", "0", 0, 7, -1)


@st.composite
def spaces_of(draw, depth=3, *, batched=False):  # noqa: PLR0911  # one for each kind
    """A space, `depth` deep at most. Values that are `batched` say how many they are: those of a space without parts do not."""
    kinds = [gym.Discrete, gym.Box, gym.MultiDiscrete, gym.MultiBinary, gym.Text]
    if depth:
        kinds += [gym.Dict, gym.Tuple, gym.OneOf, gym.Sequence, gym.Graph]
    kind, few = draw(st.sampled_from(kinds)), st.integers(1, 3)
    inner = spaces_of(depth - 1, batched=batched)
    parts = st.lists(inner, min_size=1 if batched or kind is gym.OneOf else 0, max_size=3)
    if kind is gym.Discrete:
        return gym.Discrete(draw(few), start=draw(st.integers(-3, 3)))
    if kind is gym.Box:
        shape = tuple(draw(st.lists(st.integers(0, 2), max_size=2)))
        return gym.Box(0, 9, shape, draw(st.sampled_from(DTYPES)))
    if kind is gym.MultiDiscrete:
        return gym.MultiDiscrete(draw(st.lists(few, min_size=1, max_size=3)))
    if kind is gym.MultiBinary:
        return gym.MultiBinary(draw(few))
    if kind is gym.Text:
        least = draw(st.integers(0, 2))
        characters = draw(st.sampled_from(CHARACTERS))
        return gym.Text(least + draw(few), min_length=least, charset=characters)
    if kind is gym.Dict:
        made = draw(parts)
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=3, max_size=3, unique_by=str))
        return gym.Dict(list(zip(keys, made, strict=False)))
    if kind is gym.Sequence:
        stack = draw(st.booleans())
        return gym.Sequence(draw(spaces_of(depth - 1, batched=batched or stack)), stack=stack)
    if kind is gym.Graph:
        ends = spaces_of(0, batched=True)  # graphs of graphs have a million edges
        return gym.Graph(draw(ends), draw(st.none() | ends))
    return kind(draw(parts))


SPACES = spaces_of()

"""A value of any space, nested as it likes, comes back as it was from encoding, wire, batch and record."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces as gym
from gymnasium.spaces import GraphInstance
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governor.episodes import spaces
from governor.episodes.records.space_columns import column, field
from governor.episodes.remote import wire
from tests.support.nested_spaces import SPACES, on_record

SEEDS = st.integers(0, 2**31 - 1)
BESIDE_OTHERS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=settings.default.max_examples // 2,
)


def same(one, other):
    """Whether two values are equal, in types, dtypes and shapes too."""
    if isinstance(one, np.ndarray):
        assert type(other) is np.ndarray
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
        return True
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert [*one] == [*other]
        return all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def described(space):
    return spaces.describe(space, role="observation_space")


def samples(space, seed, count=3):
    again = spaces.build(described(space), seed=seed)
    return [again.sample() for _ in range(count)]


def over_the_wire(encoded):
    sent = wire.encode(wire.ActedFrame(1, encoded))
    return wire.decode_answer(sent).action


@BESIDE_OTHERS
@given(SPACES)
def test_a_space_is_built_as_it_was_described(space):
    spec = described(space)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=spaces.SpaceSpec)
    assert sent == spec
    assert spaces.build(sent) == space
    assert "\n" not in spaces.summary(spec)


@BESIDE_OTHERS
@given(SPACES, SEEDS)
def test_a_value_comes_back_from_the_wire(space, seed):
    spec = described(space)
    send, receive = spaces.sender(spec), spaces.receiver(spec)
    for sample in samples(space, seed):
        value, _ = spaces.observer(spec)(sample)
        assert space.contains(value)
        sent = over_the_wire(value if send is None else send(value))
        assert same(sent if receive is None else receive(sent), value)


@BESIDE_OTHERS
@given(SPACES, SEEDS)
def test_an_encoding_is_the_value(space, seed):
    spec = described(space)
    for sample in samples(space, seed):
        value, encoded = spaces.observer(spec)(sample)
        decoded = spaces.decoder(spec)(over_the_wire(encoded))
        assert same(decoded, value)
        encode, copied = spaces.encoder(spec), spaces.duplicator(spec)
        assert encoded == (value if encode is None else encode(decoded))
        assert same(value if copied is None else copied(value), value)


@BESIDE_OTHERS
@given(SPACES, SEEDS)
def test_a_batch_is_that_of_gymnasium_and_comes_apart_again(space, seed):
    spec = described(space)
    values = [spaces.observer(spec)(sample)[0] for sample in samples(space, seed)]
    batch = spaces.stack(spec, values)
    theirs = concatenate(space, values, create_empty_array(space, len(values)))
    assert on_record_of_batch(space, batch) == on_record_of_batch(space, theirs)
    rows = [spaces.observer(spec)(row)[0] for row in spaces.unstack(spec, batch)]
    if has_rows(space):
        assert len(rows) == len(values)
        assert all(map(same, rows, values))


def on_record_of_batch(space, batch):
    """In lists, for a comparison."""
    if isinstance(space, gym.Dict):
        return {key: on_record_of_batch(part, batch[key]) for key, part in space.spaces.items()}
    if isinstance(space, gym.Tuple):
        return [on_record_of_batch(part, one) for part, one in zip(space.spaces, batch, strict=True)]
    if isinstance(batch, np.ndarray):
        return str(batch.dtype), batch.shape, batch.tolist()
    return [on_record(space, one) for one in batch]


def has_rows(space):
    """Whether a batch says how many rows it has: not one without parts."""
    parts = space.spaces.values() if isinstance(space, gym.Dict) else getattr(space, "spaces", None)
    return not isinstance(space, gym.Dict | gym.Tuple) or any(map(has_rows, parts))


@BESIDE_OTHERS
@given(space=SPACES, seed=SEEDS)
def test_a_column_has_the_values(tmp_path, space, seed):
    spec = described(space)
    values = samples(space, seed)
    encodings = [spaces.observer(spec)(value)[1] for value in values]
    made = column(spec)
    schema = pa.schema([field("observation", made)])
    for rows in (encodings, [over_the_wire(encoded) for encoded in encodings]):
        table = pa.table([made.arrow(rows)], schema=schema)
        table.validate(full=True)
        pq.write_table(table, tmp_path / "steps.parquet")
        again = pq.read_table(tmp_path / "steps.parquet")
        assert again.schema.equals(schema)
        expected = [on_record(space, value) for value in values]
        assert table["observation"].to_pylist() == again["observation"].to_pylist() == expected
    absent = made.arrow([made.blank] * 2, np.array([False, False]))
    assert absent.to_pylist() == [None, None]


def test_values_are_copies():
    space = gym.Dict(
        a=gym.Tuple([gym.Box(0, 9, (2,)), gym.Sequence(gym.Box(0, 9, (1,)), stack=True)]),
        g=gym.Graph(gym.Box(0, 9, (1,)), None),
    )
    given_value = {
        "a": (np.ones(2, np.float32), np.ones((2, 1), np.float32)),
        "g": GraphInstance(np.ones((2, 1), np.float32), None, None),
    }
    value, _ = spaces.observer(described(space))(given_value)
    for array in (*given_value["a"], given_value["g"].nodes):
        array[:] = 0
    assert value["a"][0].min() == value["a"][1].min() == value["g"].nodes.min() == 1


BOX, WORD = gym.Box(-1, 1, (2,)), gym.Text(3)
NESTED = gym.Dict(image=BOX, words=gym.Tuple([WORD, gym.Discrete(3)]))
GRAPH = gym.Graph(gym.Discrete(4), BOX)
NODES, EDGES, LINKS = np.zeros(2, np.int64), np.zeros((1, 2), np.float32), np.zeros((1, 2), np.int32)


@pytest.mark.parametrize(
    ("space", "value", "said"),
    [
        (NESTED, {"image": np.zeros(3), "words": ("a", 1)}, 'observation["image"]: shape (3,) where the space has (2,)'),
        (NESTED, {"image": [0, np.nan], "words": ("a", 1)}, 'observation["image"]: it holds NaN'),
        (NESTED, {"image": [0, 1], "words": ("a", 3)}, 'observation["words"][1]: 3 is not in Discrete(3)'),
        (NESTED, {"image": [0, 1], "words": ("long", 1)}, "observation[\"words\"][0]: 'long' has 4 characters where the space has 1 to 3"),
        (NESTED, {"image": [0, 1], "words": ("", 1)}, "observation[\"words\"][0]: '' has 0 characters where the space has 1 to 3"),
        (NESTED, {"image": [0, 1], "words": ("a b", 1)}, "observation[\"words\"][0]: 'a b' has ' ', which is no character of the space"),
        (NESTED, {"image": [0, 1], "words": (b"a", 1)}, "observation[\"words\"][0]: b'a' is no text"),
        (NESTED, {"image": [0, 1], "words": ("a",)}, 'observation["words"]: 1 items where the space has 2'),
        (NESTED, {"image": [0, 1], "words": "ab"}, "observation[\"words\"]: 'ab' is a str, not a tuple"),
        (NESTED, {"image": [0, 1]}, "observation: it lacks the key 'words'"),
        (NESTED, {"image": [0, 1], "words": ("a", 1), "x": 0}, "observation: it has the key 'x', which the space does not have"),
        (NESTED, [0, 1], "observation: [0, 1] is a list, not a dict"),
        (gym.Sequence(BOX), ([0, 1], [0]), "observation[1]: shape (1,) where the space has (2,)"),
        (gym.Sequence(BOX), 3, "observation: 3 is a int, not a tuple"),
        (gym.Sequence(BOX), np.float32(3), "observation: np.float32(3.0) is a float32, not a tuple"),
        (gym.Sequence(BOX, stack=True), [[0, 1, 2]], "observation: shape (1, 3) where rows of the space have ('rows', 2)"),
        (gym.Sequence(gym.Discrete(3), stack=True), [1, 3], "observation: 3 is not in Discrete(3)"),
        (gym.Sequence(NESTED, stack=True), {"image": [[0, 1]], "words": (("a", "b"), [1, 1])}, "observation: [1, 2] rows for its 2 parts"),
        (gym.OneOf([BOX, WORD]), (2, "a"), "observation: the index 2 where the space has 2 spaces"),
        (gym.OneOf([BOX, WORD]), (1, "!"), "observation[1]: '!' has '!', which is no character of the space"),
        (gym.OneOf([BOX, WORD]), "a", "observation: 'a' is a str, not (index, value)"),
        (GRAPH, (NODES, None, None), "is a tuple, not a GraphInstance"),
        (GRAPH, GraphInstance(NODES + 4, None, None), "observation.nodes: 4 is not in Discrete(4)"),
        (GRAPH, GraphInstance(NODES, EDGES * np.nan, LINKS), "observation.edges: it holds NaN"),
        (GRAPH, GraphInstance(NODES, EDGES, LINKS.ravel()), "observation.edge_links: shape (2,) where rows of the space have ('rows', 2)"),
        (GRAPH, GraphInstance(NODES, EDGES, np.zeros((2, 2), int)), "observation: 2 edge_links for 1 edges"),
        (GRAPH, GraphInstance(NODES, EDGES, LINKS + 2), "observation: edge_links beyond its 2 nodes"),
        (GRAPH, GraphInstance(NODES, EDGES, None), "observation: it has edges alone: edges and edge_links go together"),
        (gym.Graph(BOX, None), GraphInstance(EDGES, EDGES, LINKS), "observation: it has edges, and the space does not"),
    ],
)  # fmt: skip
def test_a_fault_names_its_place(space, value, said):
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the whole text is compared
        spaces.observer(described(space))(value)
    text = str(spaces.named("observation", raised.value))
    assert text.endswith(said)
    assert "\n" not in text


def test_an_action_is_named_where_a_part_of_it_is_at_fault():
    conform = spaces.copier(described(NESTED))
    with pytest.raises(ValueError, match=r'^action\["words"\]\[1\]: 3 is not in Discrete\(3\)$'):
        conform({"image": [0, 1], "words": ("a", 3)})


@pytest.mark.parametrize(
    ("space", "batch", "said"),
    [
        (NESTED, [1], r"\[1\] is not a dict of batches; one value for each row is a list"),
        (NESTED, {"image": [[0, 1]]}, r"keys \['image'\] where the space has \['image', 'words'\]"),
        (NESTED, {"image": 1, "words": ()}, r'\["image"\]: 1 is not a batch with a value for each row'),
        (NESTED, {"image": [[0, 1]], "words": ("a",)}, r'\["words"\]: .* is not a tuple with the batches of 2 spaces'),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(space, batch, said):
    with pytest.raises(ValueError, match=said):
        spaces.unstack(described(space), batch)

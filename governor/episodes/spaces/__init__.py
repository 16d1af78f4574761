"""Spaces of observations and actions: as plain data, so that they can be sent to an agent in another process, and their values.

A space is described (`specs`), also in a few words (`comparison`). A value of user code is brought into the form of its space
(`observing`), which is that of gymnasium: int, array, str, dict, tuple, GraphInstance. It has an encoding (`encodings`), and a form
for several values together (`batches`).
"""

from governor.episodes.spaces.batches import stack, unstack
from governor.episodes.spaces.comparison import difference, require_same, summary
from governor.episodes.spaces.conformers import Conformer, conformer, named
from governor.episodes.spaces.encodings import (
    blank,
    decoder,
    duplicator,
    encoder,
    is_array,
    is_composite,
    is_plain,
    receiver,
    sender,
)
from governor.episodes.spaces.observing import Observer, copier, observer
from governor.episodes.spaces.specs import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    SpaceSpec,
    Text,
    Tuple,
    build,
    describe,
    of_environment,
    storage,
)

__all__ = [
    "Box",
    "Conformer",
    "Dict",
    "Discrete",
    "Graph",
    "MultiBinary",
    "MultiDiscrete",
    "Observer",
    "OneOf",
    "Sequence",
    "SpaceSpec",
    "Text",
    "Tuple",
    "blank",
    "build",
    "conformer",
    "copier",
    "decoder",
    "describe",
    "difference",
    "duplicator",
    "encoder",
    "is_array",
    "is_composite",
    "is_plain",
    "named",
    "observer",
    "of_environment",
    "receiver",
    "require_same",
    "sender",
    "stack",
    "storage",
    "summary",
    "unstack",
]

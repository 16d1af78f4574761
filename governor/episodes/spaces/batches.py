"""Several values of one space together, as `gymnasium.vector.utils.batch_space` has them.

Values of numbers become one array (rows, *shape of the space), int64 of shape (rows,) for Discrete; those of Dict and Tuple a dict or
tuple of the batches of their parts; those of Text, Sequence, Graph and OneOf a tuple with an item for each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from governor.episodes.spaces.conformers import inside, short
from governor.episodes.spaces.specs import Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple, step, storage

if TYPE_CHECKING:
    from collections.abc import Sequence as Values

    from governor.episodes.spaces.specs import SpaceSpec


def stack(spec: SpaceSpec, values: Values[Any]) -> Any:
    """The batch of these values, which are in the form of their space."""
    match spec:
        case Dict():
            return {
                key: stack(part, [value[key] for value in values])
                for key, part in zip(spec.keys, spec.spaces, strict=True)
            }
        case Tuple():
            return tuple(
                stack(part, [value[place] for value in values]) for place, part in enumerate(spec.spaces)
            )
        case Text() | Sequence() | Graph() | OneOf():
            return tuple(values)
        case _:
            dtype, shape = storage(spec)
            return np.array(values, dtype) if values else np.empty((0, *shape), dtype)


def unstack(spec: SpaceSpec, batch: Any) -> list[Any]:
    """The values of a batch, an item for each row. Raises ValueError for what is no batch; the values are not checked."""
    match spec:
        case Dict():
            return _rows_of_dict(spec, batch)
        case Tuple():
            if not isinstance(batch, tuple) or len(batch) != len(spec.spaces):
                raise ValueError(
                    f"{short(batch)} is not a tuple with the batches of {len(spec.spaces)} spaces; one value for each row is a list"
                )
            return _zipped([_rows(part, batch[place], place) for place, part in enumerate(spec.spaces)], spec)
        case Discrete() if type(batch) is np.ndarray and batch.ndim == 1:
            numbers: list[Any] = batch.tolist()
            return numbers
        case _:
            try:
                return list(batch)
            except TypeError:
                raise ValueError(f"{short(batch)} is not a batch with a value for each row") from None


def _rows_of_dict(spec: Dict, batch: Any) -> list[Any]:
    if not isinstance(batch, Mapping):
        raise ValueError(f"{short(batch)} is not a dict of batches; one value for each row is a list")  # noqa: TRY004  # as any other fault
    missing = next((key for key in spec.keys if key not in batch), None)
    if missing is not None or len(batch) != len(spec.keys):
        raise ValueError(f"keys {[*batch]} where the space has {[*spec.keys]}")
    columns = [_rows(part, batch[key], key) for key, part in zip(spec.keys, spec.spaces, strict=True)]
    return [dict(zip(spec.keys, row, strict=True)) for row in _zipped(columns, spec)]


def _rows(part: SpaceSpec, batch: Any, at: str | int) -> list[Any]:
    try:
        return unstack(part, batch)
    except ValueError as error:
        raise inside(step(at), error) from None


def _zipped(columns: list[list[Any]], spec: Dict | Tuple) -> list[tuple[Any, ...]]:
    lengths = {len(column) for column, part in zip(columns, spec.spaces, strict=True) if _has_rows(part)}
    if len(lengths) > 1:
        raise ValueError(f"{[len(column) for column in columns]} rows for its {len(columns)} parts")
    rows = lengths.pop() if lengths else 0
    return list(
        zip(
            *(
                column if _has_rows(part) else [_hollow(part) for _ in range(rows)]
                for column, part in zip(columns, spec.spaces, strict=True)
            ),
            strict=True,
        )
    )


def _has_rows(spec: SpaceSpec) -> bool:
    """Whether a batch says how many rows it has: not that of a Dict or Tuple without parts."""
    return not isinstance(spec, Dict | Tuple) or any(map(_has_rows, spec.spaces))


def _hollow(spec: SpaceSpec) -> Any:
    """The one value of a space of which a batch has no rows."""
    if isinstance(spec, Dict):
        return {key: _hollow(part) for key, part in zip(spec.keys, spec.spaces, strict=True)}
    return tuple(map(_hollow, spec.spaces)) if isinstance(spec, Tuple) else None

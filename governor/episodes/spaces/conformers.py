"""What a value of user code must be to be one of a simple space.

Rules:
1. A `Conformer` converts a value to the form that is sent and recorded: a plain int for Discrete, a str for Text, else an array of
   the space's dtype and shape. A value of another kind is a ValueError in one line.
2. Bounds of a Box are not enforced (many environments clip); NaN in an observation, an action or a reward is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from governor.episodes.spaces.specs import Discrete, Text, storage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from governor.episodes.spaces.specs import Numbers

Conformer: TypeAlias = Callable[[Any], Any]
LOOKED_UP: Final = 4096
"""Numbers below it are looked up in a table."""


class Misfit(ValueError):
    """A value inside of another one is at fault: `path` leads to it, as ``["image"][0]``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def inside(path: str, error: ValueError) -> Misfit:
    """The fault of a value, as one of the value that has it at `path`."""
    if isinstance(error, Misfit):
        return Misfit(path + error.path, error.reason)
    return Misfit(path, str(error))


def named(name: str, error: ValueError) -> ValueError:
    """The fault of a value with its name in front: ``observation["image"]: shape (3,) where the space has (2,)``."""
    return ValueError(f"{name}{'' if isinstance(error, Misfit) else ': '}{error}")


def conformer(spec: Numbers | Text) -> Conformer:
    """A function that converts a value of user code to the form that is sent, or raises ValueError."""
    match spec:
        case Discrete():
            return _discrete(spec)
        case Text():
            return _text(spec)
        case _:
            dtype, shape = storage(spec)
            return _array(dtype, shape)


def _discrete(spec: Discrete) -> Conformer:
    start, stop = spec.start, spec.start + spec.n

    def conform(value: Any) -> int:
        if type(value) is not int:
            value = int(value) if isinstance(value, np.integer) else _integer(value)
        if not start <= value < stop:
            raise ValueError(f"{value} is not in {_shown(spec)}")
        return value  # type: ignore[no-any-return]  # an int by the line above

    return conform


def _shown(spec: Discrete) -> str:
    return f"Discrete({spec.n}{f', start={spec.start}' if spec.start else ''})"


def _integer(value: Any) -> int:
    if type(value) is bool:  # Python's own is an integer, also for Gymnasium; numpy's is none
        return int(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{short(value)} is no integer")
    return int(array.reshape(())[()])


def _text(spec: Text) -> Conformer:
    known = None if spec.characters is None else frozenset(spec.characters)

    def conform(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{short(value)} is no text")  # noqa: TRY004  # as any other fault of a value
        if known is None:
            if not value.isascii():
                _require_encodable(value)
        elif not spec.min_length <= len(value) <= spec.max_length:
            raise ValueError(
                f"{short(value)} has {len(value)} characters where the space has {spec.min_length} to {spec.max_length}"
            )
        elif not known.issuperset(value):
            odd = next(character for character in value if character not in known)
            raise ValueError(f"{short(value)} has {odd!r}, which is no character of the space")
        return str(value)

    return conform


def _require_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{short(text)} has characters that UTF-8 cannot encode") from None


def _array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Conformer:
    def conform(value: Any) -> NDArray[Any]:
        array = _cast_to(dtype, value)
        if array.shape != shape:
            raise ValueError(f"shape {array.shape} where the space has {shape}")
        _require_numbers(array)
        return array

    return conform


def rows_conformer(spec: Numbers) -> Conformer:
    """Of any number of values in one array (rows, *shape of the space)."""
    dtype, shape = storage(spec)
    require = _members_required(spec) if isinstance(spec, Discrete) else _require_numbers

    def conform(value: Any) -> NDArray[Any]:
        array = value if value.__class__ is np.ndarray and value.dtype is dtype else _cast_to(dtype, value)
        if not array.size and array.shape == (0,):
            array = array.reshape(0, *shape)
        if array.ndim == 0 or array.shape[1:] != shape:
            raise ValueError(f"shape {array.shape} where rows of the space have {('rows', *shape)}")
        require(array)
        return array

    return conform


def _members_required(spec: Discrete) -> Callable[[NDArray[Any]], None]:
    """A function that raises ValueError if one of some numbers is not in the space. To look each up in a table, where it must find itself,
    takes a fifth of the time of their minimum and maximum.
    """
    first, end = spec.start, spec.start + spec.n
    table = np.arange(max(0, min(end, LOOKED_UP)))
    table[: max(0, first)] = -1

    def require_members(numbers: NDArray[Any]) -> None:
        with suppress(IndexError):
            if table[numbers].tobytes() == numbers.tobytes():
                return
        if len(odd := numbers[(numbers < first) | (numbers >= end)]):
            raise ValueError(f"{odd[0]} is not in {_shown(spec)}")

    return require_members


def _cast_to(dtype: np.dtype[Any], value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
        return array if array.dtype == dtype else _cast(array, dtype)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{short(value)} is no array of {dtype}: {error}") from error


def _require_numbers(array: NDArray[Any]) -> None:
    if array.dtype.kind == "f" and np.count_nonzero(np.isnan(array)):
        raise ValueError("it holds NaN")


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biuf":
        return array.astype(dtype, casting="same_kind")
    with np.errstate(all="ignore"):  # user code may have said that numpy raises
        cast: NDArray[Any] = array.astype(dtype, casting="unsafe")
    if dtype.kind == "f" and not np.isfinite(cast).all() and (np.isinf(cast) & ~np.isinf(array)).any():
        raise ValueError(
            f"an array of {array.dtype} with numbers beyond the range of {dtype}, which the space has"
        )
    if dtype.kind in "iub" and not np.equal(cast, array).all():
        raise ValueError(
            f"an array of {array.dtype} with fractions, or beyond the range, where the space has {dtype}"
        )
    return cast


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""Functions that raise all kinds of exceptions."""

from __future__ import annotations


def outer() -> None:
    inner(is_there=False)


def inner(*, is_there: bool) -> None:
    assert is_there, "no map"


def chained(key: object = "x") -> None:
    try:
        {}[key]
    except KeyError as error:
        raise RuntimeError("cannot learn") from error


def group() -> None:
    second = TypeError("two")
    second.add_note("in the second room")
    raise ExceptionGroup("both", [ValueError("one"), second])


def recursion() -> None:
    recursion()


def large(size: int) -> None:
    raise ValueError("y" * size + "end")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def unprintable() -> None:
    raise Unprintable


def odd_text() -> None:
    raise ValueError("\udc80 \x1b[31m \0")


def with_secret(password: str) -> None:
    if password:
        raise ValueError("refused")


def hang(begun, go_on) -> None:  # type: ignore[no-untyped-def]
    begun.set()
    go_on.wait(20)

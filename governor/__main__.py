"""The way in: `governor ...` and `python -m governor ...`.

Rules:
1. For `serve` and `run` the guard stands first, before any thread and any heavy import: from there on this code runs
   in the daemon, below both guards. All other verbs are plain clients.
2. Children import this module again (multiprocessing looks at the parent's main module): nothing happens at import.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

GUARDED: Final = frozenset({"serve", "run"})
_TAKE_A_VALUE: Final = frozenset({"--broker", "--context"})
_ASK_ONLY: Final = frozenset({"--help", "-h", "--version"})


def verb_of(arguments: Sequence[str]) -> str | None:
    """The verb in `arguments`; None when there is none, or when only help or the version is asked for."""
    words = iter(arguments)
    for word in words:
        if word in _ASK_ONLY:
            return None
        if word in _TAKE_A_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return None if _ASK_ONLY.intersection(words) else word
    return None


def open_streams() -> None:
    """Opens /dev/null where standard input, output or error is missing, so that no socket or file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free: this one
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "w" if number else "r", closefd=False))  # noqa: SIM115  # open to the end


def replace_what_has_no_code() -> None:
    """Characters that the encoding of a terminal does not have, and parts of names that are no text, end no output."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper):
            continue
        is_unicode = stream.encoding.lower().startswith("utf")
        if stream.errors == "strict" or (
            stream.errors == "surrogateescape" and not is_unicode
        ):  # the locale C
            stream.reconfigure(errors="backslashreplace" if is_unicode else "replace")


def main() -> None:
    """Runs the command line of this process and exits with its exit code."""
    open_streams()
    replace_what_has_no_code()
    verb = verb_of(sys.argv[1:])
    if verb in GUARDED:
        from governor.processes.guard import start_guard  # noqa: PLC0415  # the guard must hold nothing that it does not need

        start_guard(makes_folder=verb == "run")
    from governor.cli import cli  # noqa: PLC0415  # after the fork, as above

    cli.main(prog_name="governor")


if __name__ == "__main__":
    main()

"""Environment variables of a run: names that are refused, and the lines of an `env_file`. Pure.

Rules:
1. A name that decides how the daemon, its processes or Ray work together is refused: a run must not change that from inside.
2. A fault names the line and the variable, never its value: the file may hold keys.
"""

from __future__ import annotations

import re
from typing import Final

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
RESERVED_PREFIXES: Final = ("GOVERNOR_", "RUN_GOVERNOR_", "RAY_", "LISTEN_", "WATCHDOG_")
RESERVED: Final = frozenset(
    {
        "CREDENTIALS_DIRECTORY",
        "JOURNAL_STREAM",
        "NOTIFY_SOCKET",
        "RUNTIME_DIRECTORY",
        "SPT_NOENV",
        "STATE_DIRECTORY",
    }
)
_LINE: Final = re.compile(rf"(?:export\s+)?(?P<name>{NAME})\s*=\s*(?P<value>.*)")
_QUOTED: Final = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)\"""")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


def refusal(name: str) -> str:
    """Why a run can't set this variable; "" if it can."""
    if name in RESERVED or name.startswith(RESERVED_PREFIXES):
        return f"{name} is not for runs: Run Governor, systemd or Ray set it for processes of their own"
    return ""


def parse(text: str) -> tuple[dict[str, str], list[str]]:
    """The variables of a file in dotenv form, and its faults. The last line with a name counts; nothing is filled in for ``$NAME``."""
    found: dict[str, str] = {}
    faults: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        given = line.strip()
        if not given or given.startswith("#"):
            continue
        match = _LINE.fullmatch(given)
        if match is None:
            faults.append(f"line {number} is not NAME=VALUE")
            continue
        name, value = match["name"], _value(match["value"])
        if value is None:
            faults.append(
                f"line {number}: the value of {name} has a quote that is not closed, or text behind it"
            )
        elif "\0" in value:
            faults.append(f"line {number}: the value of {name} holds a zero byte")
        elif reason := refusal(name):
            faults.append(f"line {number}: {reason}")
        else:
            found[name] = value
    return found, faults


def _value(text: str) -> str | None:
    if not text.startswith(("'", '"')):
        return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].rstrip()
    quoted = _QUOTED.match(text)
    if quoted is None or not re.fullmatch(r"(?:\s+#.*)?\s*", text[quoted.end() :]):
        return None
    if quoted["single"] is not None:
        return quoted["single"]
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), quoted["double"])

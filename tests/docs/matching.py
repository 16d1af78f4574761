"""Compares a command's output with what a page shows of it.

`...` in a line stands for any text, a line of `...` alone for any lines, also none. Ids of runs, durations, times of day,
dates, pids and numbers with a decimal point agree with any other of their kind; the width of blanks and rules does not count.
"""

from __future__ import annotations

import re

from governor.runs.assignment import UID_ALPHABET, UID_LENGTH

_DURATION = r"\d+(?:\.\d+)?(?:ms|min|s|h|d)\b"
KINDS = {
    "any": r"\.\.\.",
    "stamp": r"\b\d{8}-\d{6}(?:-\d+)?\b",
    "date": r"\b\d{4}-\d\d-\d\d(?!\d)",
    "time": r"(?<!\d)\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?(?![\d:])",
    "duration": rf"(?<![\w.]){_DURATION}(?:\s{_DURATION})*",
    "version": r"\d+(?:\.\d+){2,}",
    "number": r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?![\d.]*\d)",
    "pid": r"\bpids?[ =:]+\d+",
    "id": rf"(?<!\w)(?!\d+\b)[{UID_ALPHABET}]{{{UID_LENGTH}}}(?!\w)",
    "rule": r"[─━═-]{3,}",
    "blank": r"\s+",
}
MATCHES = {
    **KINDS,
    "any": ".*?",
    # a mean of 1.0 is printed as 1
    "number": r"(?<![\w.])-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)",
}
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in KINDS.items()))
_PID_COLUMN = re.compile(r"(?:^|\s)pid(?:\s|$)")


def difference(expected, actual, ids=None):
    """The first line of `expected` that `actual` does not have in its place, in words, or "". Into the mapping `ids` it puts
    which id was found for an id of `expected`.
    """
    wanted, found = _lines(expected), _lines(actual)
    pids = any(_PID_COLUMN.search(line) for line in wanted)
    patterns = [None if line == "..." else _pattern(line, pids=pids) for line in wanted]
    deepest = 0
    # For each line of `expected` the lengths of what of `actual` the lines before it may have matched.
    reached = {0}
    came_from = []
    for number, pattern in enumerate(patterns):
        following = {}
        for at in reached:
            ends = range(at, len(found) + 1) if pattern is None else _one(pattern, found, at)
            following.update({end: at for end in ends if end not in following})
        if not following:
            deepest = min(reached)
            shown = found[deepest] if deepest < len(found) else "the end of the output"
            return f"expected: {wanted[number]}\nfound:    {shown}"
        came_from.append(following)
        reached = set(following)
    if len(found) not in reached:
        return f"expected: the end of the output\nfound:    {found[max(reached)]}"
    if ids is not None:
        _note_ids(patterns, found, came_from, ids)
    return ""


def _one(pattern, found, at):
    return [at + 1] if at < len(found) and pattern.fullmatch(found[at]) else []


def _note_ids(patterns, found, came_from, ids):
    end = len(found)
    for pattern, origins in zip(reversed(patterns), reversed(came_from), strict=True):
        at = origins[end]
        if pattern is not None:
            groups = pattern.fullmatch(found[at]).groupdict()
            ids.update({name.partition("_")[2]: value for name, value in groups.items()})
        end = at


def _lines(text):
    lines = [line.strip() for line in text.splitlines()]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    return lines


def _pattern(line, *, pids):
    parts, at = [], 0
    for token in _TOKEN.finditer(line):
        parts.append(_literal(line[at : token.start()], pids=pids))
        kind, text = token.lastgroup, token.group()
        if kind == "id":
            name = f"id{len(parts)}_{text}"
            parts.append(f"(?P<{name}>{re.escape(text)}|{MATCHES['id']})")
        else:
            parts.append(re.escape(text) if kind == "version" else f"(?:{MATCHES[kind]})")
        at = token.end()
    parts.append(_literal(line[at:], pids=pids))
    return re.compile("".join(parts))


def _literal(text, *, pids):
    """`pids`: a column of the table has pids."""
    escaped = re.escape(text)
    return re.sub(r"(?<!\w)\d{2,7}(?!\w)", r"\\d+", escaped) if pids else escaped

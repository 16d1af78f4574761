"""The public names of a package with signature and docstring: what its `__all__` exports."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from pydantic import BaseModel

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Rules):$")
_LONGEST = 100


def part(words: str, _: str, every: list[tuple[str, str]]) -> str:
    """`words`: ``package: NAME NAME``; ``package:`` alone has all names that no other part of the page lists."""
    package, _, listed = words.partition(":")
    module = import_module(package)
    names = listed.split()
    if not names:
        others = {name for kind, more in every if kind == "api" for name in more.partition(":")[2].split()}
        names = [name for name in module.__all__ if name not in others and not name.startswith("_")]
        names.sort(key=lambda name: isinstance(getattr(module, name), type))  # functions first
    if unknown := set(names) - set(module.__all__):
        raise ValueError(f"{package} does not export {', '.join(sorted(unknown))}")
    return "\n".join(_entry(name, getattr(module, name)) for name in names)


def _entry(name: str, value: Any) -> str:
    doc = _markdown(inspect.getdoc(value) or "")
    members = _members(value if isinstance(value, type) else type(value))
    lines = [f"### `{name}`", "", "```py", _signature(name, value), "```", "", doc, ""]
    return "\n".join([*lines, *members, ""] if members else lines)


def _members(holder: type) -> list[str]:
    """A line for each public method and property that is documented in our packages, those of base classes first."""
    found = {}
    for base in reversed(holder.__mro__):
        if not base.__module__.startswith(("governor", "states", "transport")):
            continue
        for name, member in vars(base).items():
            inner = getattr(member, "__func__", member)
            is_shown = isinstance(inner, property) or inspect.isfunction(inner)
            if is_shown and not name.startswith("_") and (doc := inspect.getdoc(member)):
                shown = name if isinstance(inner, property) else _signature(name, inner, of_instance=True)
                found[name] = f"* `{' '.join(shown.split())}`: {_markdown(doc, inline=True)}"
    return list(found.values())


def _signature(name: str, value: Any, *, of_instance: bool = False) -> str:
    if isinstance(value, type) and issubclass(value, BaseModel):
        return f"{name}(*, {', '.join(value.model_fields)})"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [one for one in signature.parameters.values() if one.name not in {"self", "cls"}]
    returns = inspect.Signature.empty if isinstance(value, type) else signature.return_annotation
    text = str(signature.replace(parameters=parameters, return_annotation=returns))
    # Annotations are texts: they are shown without quotes.
    text = re.sub(r"((?::|->) )'((?:[^'\\]|\\.)*)'", r"\1\2", text)
    text = re.sub(r'((?::|->) )"([^"]*)"', r"\1\2", text)
    text = re.sub(r"<factory>|<\w+ (?:[^<>]|<\w+>)* at 0x\w+>", "...", text)
    text = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", text)
    before = "async " if inspect.iscoroutinefunction(value) else ""
    line = f"{before}{name}{text}"
    if of_instance or len(line) <= _LONGEST:
        return line
    inner, _, after = text[1:].rpartition(")")
    return f"{before}{name}(\n    " + ",\n    ".join(_arguments(inner)) + f",\n){after}"


def _arguments(text: str) -> list[str]:
    """`text` split at its commas outside of brackets."""
    found, depth = [""], 0
    for character in text:
        depth += character in "([{"
        depth -= character in ")]}"
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [argument.strip() for argument in found]


def _markdown(doc: str, *, inline: bool = False) -> str:
    """A docstring as Markdown: sections as lists, or all on one line; double backticks as single ones."""
    lines: list[str] = []
    section = ""
    for line in doc.replace("``", "`").splitlines():
        if found := _SECTION.match(line):
            section = found[1]
            lines.append(f"{section}:" if inline else f"**{section}:**\n")
        elif section and line.startswith("    "):
            is_item = line[4] != " " and section != "Returns" and not inline
            lines.append(f"* {line.strip()}" if is_item else line.strip())
        else:
            section = section if not line else ""
            lines.append(line)
    return " ".join(" ".join(lines).split()) if inline else "\n".join(lines).strip()

"""The public names of a package with signature and docstring: what its `__all__` exports.

Signatures are rendered here, from parameters and their annotations as they are written: so they are the same under all versions
of Python and of the libraries.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from governor.errors import GovernorError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Rules):$")
_LONGEST = 100
_WIDTH = 120
_OURS = ("governor", "states", "transport")


def part(words: str, _: str, every: list[tuple[str, str]]) -> str:
    """`words`: ``package: NAME NAME``; ``package:`` alone has all names that no other part of the page lists."""
    package, _, listed = words.partition(":")
    module = import_module(package)
    names = listed.split()
    if not names:
        lists = [more for kind, more in every if kind in {"api", "brief", "own"}]
        others = {name for more in lists for name in more.partition(":")[2].split()}
        names = [name for name in module.__all__ if name not in others and not name.startswith("_")]
        names.sort(key=lambda name: isinstance(getattr(module, name), type))  # functions first
    _require(package, names)
    return "\n".join(_entry(name, getattr(module, name)) for name in names)


def own(words: str, *_: object) -> str:
    """As `part`, of ``package: NAME``, without the members of its base classes."""
    package, _, name = words.partition(": ")
    _require(package, [name])
    value = getattr(import_module(package), name)
    return _entry(name, value, own=True)


def brief(words: str, *_: object) -> str:
    """A line for each name of ``package: NAME NAME``: the first sentence of its docstring."""
    package, _, listed = words.partition(":")
    module = import_module(package)
    _require(package, listed.split())
    rows = [f"| `{name}` | {_first(getattr(module, name))} |" for name in listed.split()]
    return "\n".join(["| name | is |", "|---|---|", *rows]) + "\n"


def fields(words: str, *_: object) -> str:
    """The classes of ``module: NAME NAME``, which methods return, with their fields."""
    package, _, listed = words.partition(":")
    module = import_module(package)
    shown = []
    for name in listed.split():
        kind = getattr(module, name)
        bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith(_OURS)]
        types = {key: text for base in bases for key, text in inspect.get_annotations(base).items()}
        block = "\n".join(
            [f"class {name}:", *(f"    {key}: {_annotation(text)}" for key, text in types.items())]
        )
        shown.append(
            f"### `{name}`\n\n```py\n{block}\n```\n\n{_markdown(inspect.cleandoc(vars(kind)['__doc__']))}\n"
        )
    return "\n".join(shown)


def errors(words: str, *_: object) -> str:
    """A table of the errors of ``module: NAME NAME`` with their exit codes."""
    package, _, listed = words.partition(":")
    module = import_module(package)
    rows = []
    for name in listed.split():
        kind: type[GovernorError] = getattr(module, name)
        base = next(each for each in kind.__mro__[1:] if each.__module__ != "governor.tasks.errors")
        above = "" if kind is GovernorError else f"`{base.__name__}`"
        rows.append(
            f"| `{name}` | {above} | {int(kind.exit_code)} | {_markdown(kind.__doc__ or '', inline=True)} |"
        )
    return "\n".join(["| error | is a | exit code | means |", "|---|---|---|---|", *rows]) + "\n"


def _require(package: str, names: list[str]) -> None:
    if unknown := set(names) - set(import_module(package).__all__):
        raise ValueError(f"{package} does not export {', '.join(sorted(unknown))}")


def _first(value: Any) -> str:
    text = _markdown(inspect.getdoc(value) or "", inline=True)
    found = re.match(r".+?[.!?](?=\s|$)", text)
    return found[0] if found else text


def _entry(name: str, value: Any, *, own: bool = False) -> str:
    doc = _markdown(inspect.getdoc(value) or "")
    holder = value if isinstance(value, type) else type(value)
    members = _members(name, (holder,) if own else holder.__mro__)
    if inspect.isfunction(value):
        attached = {f"{name}.{key}": each for key, each in vars(value).items() if inspect.ismethod(each)}
        members += [
            f"```py\n{_shown(key, each)}\n```\n\n{_markdown(inspect.getdoc(each) or '')}\n"
            for key, each in attached.items()
        ]
    lines = [f"### `{name}`", "", "```py", _signature(name, value), "```", "", doc, ""]
    return "\n".join([*lines, *members])


def _members(of: str, classes: Sequence[type]) -> list[str]:
    """The public methods and properties that are documented in our packages, those of base classes first."""
    found = {}
    for base in reversed(classes):
        if not base.__module__.startswith(_OURS):
            continue
        for name, member in vars(base).items():
            inner = getattr(member, "__func__", member)
            is_shown = isinstance(inner, property) or inspect.isfunction(inner)
            if is_shown and not name.startswith("_") and (doc := inspect.getdoc(member)):
                found[name] = f"```py\n{_shown(f'{of}.{name}', inner)}\n```\n\n{_markdown(doc)}\n"
    return list(found.values())


def _shown(name: str, member: Any) -> str:
    if not isinstance(member, property):
        return _signature(name, member)
    returns = inspect.signature(member.fget).return_annotation if member.fget else inspect.Signature.empty
    return name if returns is inspect.Signature.empty else f"{name}: {_annotation(returns)}"


def _signature(name: str, value: Any) -> str:
    if isinstance(value, type) and issubclass(value, BaseModel):
        return _call(name, ["*", *value.model_fields], "")
    if isinstance(value, type) and issubclass(value, Enum):
        return f"{name}: " + ", ".join(member.name for member in value)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    arguments: list[str] = []
    last = inspect.Parameter.POSITIONAL_ONLY
    for one in signature.parameters.values():
        if one.name in {"self", "cls"}:
            continue
        if one.kind == one.KEYWORD_ONLY and last not in {one.KEYWORD_ONLY, one.VAR_POSITIONAL}:
            arguments.append("*")
        last = one.kind
        arguments.append(_argument(one))
    returns = "" if isinstance(value, type) else signature.return_annotation
    after = f" -> {_annotation(returns)}" if returns not in {"", inspect.Signature.empty} else ""
    return _call(f"{'async ' if inspect.iscoroutinefunction(value) else ''}{name}", arguments, after)


def _call(name: str, arguments: list[str], after: str) -> str:
    line = f"{name}({', '.join(arguments)}){after}"
    if len(line) <= _LONGEST:
        return line
    return f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){after}"


def _argument(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    is_typed, is_optional = one.annotation is not one.empty, one.default is not one.empty
    typed = f"{stars}{one.name}{f': {_annotation(one.annotation)}' if is_typed else ''}"
    return f"{typed} = {_default(one.default)}" if is_optional else typed


def _annotation(annotation: Any) -> str:
    """As it is written; that of a field of a struct is a type or a text."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return " ".join(text.strip("'\"").split()).replace("'", '"')


def _default(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if is_dataclass(value) and value == type(value)():
        return f"{type(value).__name__}()"
    text = repr(value)
    return "..." if text.startswith("<") else text  # made anew by each call, or a function


def _markdown(doc: str, *, inline: bool = False) -> str:
    """A docstring as Markdown: paragraphs and sections as lists, wrapped, or all on one line; double backticks as single ones."""
    if inline:
        return " ".join(doc.replace("``", "`").split())
    items: list[str] = [""]
    section = ""
    for line in doc.replace("``", "`").splitlines():
        if found := _SECTION.match(line):
            section = found[1]
            items += [f"**{section}:**", ""]
        elif not line:
            section = ""
            items.append("")
        elif section and line[:4] == "    " and line[4:5] != " " and section != "Returns":
            items.append(f"* {line.strip()}")
        else:
            items[-1] = f"{items[-1]} {line.strip()}".strip()
    lines: list[str] = []
    for item in filter(None, items):
        is_item = item.startswith("* ")
        if lines and not (is_item and lines[-1].startswith(("* ", "  "))):
            lines.append("")
        lines += textwrap.wrap(
            item, _WIDTH, subsequent_indent="  " * is_item, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)

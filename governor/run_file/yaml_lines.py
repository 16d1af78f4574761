"""Reads YAML as plain data with the line of every value, so that each fault can name its line.

Rules:
1. Only plain data comes out: mappings with text keys, lists, texts, numbers, booleans, null. No tag runs code.
2. Faults of the YAML itself (syntax, a key twice, a key that is no text) are collected, not raised.
3. Two surprises of YAML 1.1 are off: ``1e-3`` is a number here, and a date stays a text.
4. Aliases are copied, up to a limit: a file of a few lines can't grow without bound. The data of the file itself are
   bounded by the size of the file alone (`load`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from governor.units.sections import Path

_MAX_COPIES: Final = 100_000
_MAX_DEPTH: Final = 100
_MERGE: Final = "tag:yaml.org,2002:merge"
_FLOAT: Final = "tag:yaml.org,2002:float"
_COLLECTIONS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """SafeLoader with rule 3."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?(?:\d[\d_]*)(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


class _TooMuch(Exception):
    """The document exceeds a limit."""

    def __init__(self, message: str, node: yaml.Node) -> None:
        super().__init__(message)
        self.line: int = node.start_mark.line + 1


@dataclass(kw_only=True)
class Document:
    """`data` is None for an empty file; `lines` maps the path of each value to its line, from 1."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[tuple[Path, int, str]] = field(default_factory=list)

    def line(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest enclosing value that is in the file."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


def read(content: str) -> Document:
    """`content` as a `Document`. Never raises, whatever the text."""
    document = Document()
    try:
        loader = _Loader(content)
    except yaml.reader.ReaderError as error:
        document.faults.append(
            ((), content.count("\n", 0, error.position) + 1, "holds a character that YAML forbids")
        )
        return document
    try:
        node = loader.get_single_node()
        if node is not None:
            document.data = _Builder(loader=loader, document=document).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        document.faults.append(((), mark.line + 1 if mark else 1, f"is not YAML: {what}"))
        document.data = None
    except _TooMuch as error:
        document.faults.append(((), error.line, str(error)))
        document.data = None
    except RecursionError:
        document.faults.append(((), 1, f"is nested deeper than {_MAX_DEPTH} levels"))
    finally:
        loader.dispose()
    return document


class _Builder:
    """Walks the nodes of one document; counts the copies for rule 4."""

    def __init__(self, *, loader: _Loader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._built: set[int] = set()
        """Nodes, by identity: a node that is built again was reached by an alias."""
        self._faulty: set[int] = set()
        self._copies = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        if len(path) > _MAX_DEPTH:
            raise _TooMuch(f"is nested deeper than {_MAX_DEPTH} levels", node)
        self._count(id(node) in self._built, node)
        self._built.add(id(node))
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode | yaml.SequenceNode):
            if node.tag not in _COLLECTIONS:
                raise yaml.MarkedYAMLError(
                    problem=f"the tag {node.tag!r} is not taken", problem_mark=node.start_mark
                )
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        made = {}
        for key, (line, value_node) in self._items(node, path).items():
            self._document.lines[*path, key] = line
            made[key] = self.build(value_node, (*path, key))
        return made

    def _items(self, node: yaml.MappingNode, path: Path) -> dict[str, tuple[int, yaml.Node]]:
        """The line and the value of each key; the mapping's own keys win over merged ones."""
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: dict[str, tuple[int, yaml.Node]] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                self._merge(value_node, path, merged)
                continue
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                shown = f"the key {key_node.value}" if isinstance(key_node, yaml.ScalarNode) else "a key"
                self._fault(path, key_node, f"{shown} must be a text: put it in quotes")
            elif key in own:
                text = f"key {key!r} stands twice (first in line {own[key][0]})"
                self._fault((*path, key), key_node, text)
            else:
                own[key] = line, value_node
        return {**merged, **own}

    def _merge(self, node: yaml.Node, path: Path, into: dict[str, tuple[int, yaml.Node]]) -> None:
        """``<<: *base`` or ``<<: [*a, *b]``: the first one wins."""
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                self._fault(path, source, "'<<' merges mappings only")
                continue
            self._count(1 + len(source.value), source)
            for key, item in self._items(source, path).items():
                into.setdefault(key, item)

    def _count(self, copies: int, node: yaml.Node) -> None:
        self._copies += copies
        if self._copies > _MAX_COPIES:
            raise _TooMuch(
                f"has aliases that stand for more than {_MAX_COPIES} values: write less of it twice, or hand the run in from "
                "Python, as plain data",
                node,
            )

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        except ValueError:
            problem = f"{node.value!r} is not a valid {node.tag.rsplit(':', 1)[-1]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        if value is None or isinstance(value, str | int | float):
            return value
        problem = (
            f"{type(value).__name__} values are not taken (line {node.start_mark.line + 1}): write a text"
        )
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)

    def _fault(self, path: Path, node: yaml.Node, message: str) -> None:
        """Reports a fault of `node` once, however many aliases lead to it."""
        if id(node) not in self._faulty:
            self._faulty.add(id(node))
            self._document.faults.append((path, node.start_mark.line + 1, message))

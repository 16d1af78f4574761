"""The generated parts of the pages are those that the code of today makes, and they say all that there is to say."""

import ast
import re
import subprocess
import sys
import tomllib
from typing import get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from governor.config import Config
from governor.errors import ExitCode
from governor.run_file.model import Run
from tests.docs.fragments import sections_of
from tests.docs.pages import ROOT, read

GENERATE = [sys.executable, str(ROOT / "docs" / "tools" / "generate.py")]


def test_the_committed_pages_are_those_that_are_made():
    done = subprocess.run([*GENERATE, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("root", [Run, Config])
def test_every_key_has_a_description(root):
    keys = {
        f"{section.__name__}.{key}": field.description
        for section in sections_of(root)
        for key, field in section.model_fields.items()
    }
    assert [key for key, text in keys.items() if not text] == []
    assert [key for key, text in keys.items() if text and not text.endswith(".")] == []


@pytest.mark.parametrize(
    ("page", "root", "parse"), [("run-file", Run, yaml.safe_load), ("configuration", Config, tomllib.loads)]
)
def test_every_key_has_an_example(page, root, parse):
    example = next(block for block in read(ROOT / "docs" / f"{page}.md").blocks if block.title)
    shown = set(_keys(root, parse(example.content)))
    missing = [
        f"{section.__name__}.{key}"
        for section in sections_of(root)
        for key, field in section.model_fields.items()
        if (section, key) not in shown and not field.examples
    ]
    assert missing == []


def _keys(model, data):
    """The keys that are given in `data`, each with its section."""
    for key, field in model.model_fields.items():
        if key in data:
            yield model, key
            yield from _keys_below(field.annotation, data[key])


def _keys_below(annotation, data):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _keys(annotation, data) if isinstance(data, dict) else ()
        return
    items = [data]
    if isinstance(data, dict) and get_origin(annotation) is dict:
        items = data.values()
    elif isinstance(data, list) and get_origin(annotation) in (list, tuple):
        items = data
    for part in get_args(annotation):
        for item in items:
            yield from _keys_below(part, item)


def test_the_page_has_every_exit_code():
    page = (ROOT / "docs" / "cli.md").read_text()
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*ExitCode]


@pytest.mark.parametrize("folder", ["daemon", "runs", "journal", "output", "processes"])
def test_the_page_has_every_event_of_the_daemons_own_process(folder):
    page = (ROOT / "docs" / "logs.md").read_text()
    calls = [
        node
        for module in sorted((ROOT / "governor" / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    ]
    events = {
        str(call.args[0].value)
        for call in calls
        if call.func.attr in {"info", "warning", "error", "exception"}
        and isinstance(call.args[0], ast.Constant)
        and re.fullmatch(r"[a-z_]+\.[a-z_.]+", str(call.args[0].value))
    }
    assert events
    assert {event for event in events if f"`{event}`" not in page} == set()

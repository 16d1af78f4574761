"""All verbs with their usage and options, from click's commands: what `governor VERB --help` prints."""

from __future__ import annotations

import click

from governor.cli import VERBS, cli


def part(words: str, *_: object) -> str:
    """`words`: ``table`` of all verbs, ``options`` of `governor` itself, or ``each`` verb."""
    root = click.Context(cli, info_name="governor", **cli.context_settings)
    commands = {verb: cli.get_command(root, verb) for verb in VERBS}
    if words == "options":
        return _options(cli, root)
    if words == "table":
        rows = [f"| [`{verb}`](#governor-{verb}) | {_first(command)} |" for verb, command in commands.items()]
        return "\n".join(["| verb | does |", "|---|---|", *rows]) + "\n"
    return "\n".join(_verb(verb, command, root) for verb, command in commands.items())


def _first(command: click.Command) -> str:
    return _text(command).split("\n\n")[0].partition(". ")[0].rstrip(".")


def _text(command: click.Command) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))


def _verb(verb: str, command: click.Command, root: click.Context) -> str:
    context = click.Context(command, info_name=verb, parent=root)
    usage = f"governor {verb} {' '.join(command.collect_usage_pieces(context))}"
    return (
        f"### `governor {verb}`\n\n```text\n{usage}\n```\n\n{_text(command)}\n\n{_options(command, context)}"
    )


def _options(command: click.Command, context: click.Context) -> str:
    records = [found for option in command.get_params(context) if (found := option.get_help_record(context))]
    rows = [
        f"| {_code(names)} | {' '.join(text.split()).replace('|', '&#124;')} |"
        for names, text in records
        if text
    ]
    return "\n".join(["| option | means |", "|---|---|", *rows]) + "\n"


def _code(text: str) -> str:
    """In a table a pipe ends the cell, on GitHub even in backticks."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"

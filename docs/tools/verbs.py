"""All verbs with their usage and options, from click's commands; rendered here, because click's own words change by version."""

from __future__ import annotations

import click

from governor.cli import VERBS, cli

_TYPES = {"integer": "INTEGER", "float": "NUMBER", "path": "PATH", "file": "FILE", "directory": "DIRECTORY"}


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
    arguments = [_argument(each) for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join(["governor", verb, "[OPTIONS]", *arguments])
    level = "###" + "#" * verb.count(" ")
    made = f"{level} `governor {verb}`\n\n```text\n{usage}\n```\n\n{_text(command)}\n\n{_options(command, context)}"
    below = command.commands if isinstance(command, click.Group) else {}
    return "\n".join([made, *(_verb(f"{verb} {name}", each, context) for name, each in below.items())])


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or str(argument.name).upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _options(command: click.Command, context: click.Context) -> str:
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    rows = [
        f"| {_code(_names(each))} | {' '.join(_means(each).split()).replace('|', '&#124;')} |"
        for each in options
        if not each.hidden
    ]
    return "\n".join(["| option | means |", "|---|---|", *rows]) + "\n"


def _names(option: click.Option) -> str:
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    return names if option.is_flag else f"{names} {_value(option)}"


def _value(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return f"[{'|'.join(map(str, option.type.choices))}]"
    return _TYPES.get(option.type.name.removesuffix(" range"), "TEXT")


def _means(option: click.Option) -> str:
    text = str(option.help)
    if isinstance(option.type, click.IntRange | click.FloatRange):
        least, most = option.type.min, option.type.max
        text += f" From {least:,} up." if most is None else f" From {least:,} to {most:,}."
    return f"{text} Default: {option.default}." if option.show_default and not option.is_flag else text


def _code(text: str) -> str:
    """In a table a pipe ends the cell, on GitHub even in backticks."""
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"

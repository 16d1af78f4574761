"""Makes live-view.svg: what `governor run examples/frozen_lake/run.yaml` shows in a terminal, while its agent learns.

    .venv/bin/python docs/pictures/make_live_view.py

Plays the run, and renders its real events as the command line does. The picture loads no font: it has those of the reader.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from governor.cli.rendering import display
from governor.cli.rendering.view import RunView
from governor.messages import RunEvent

COMMAND = "governor run examples/frozen_lake/run.yaml"
COLUMNS = 96
MOMENT = ("train", 50)
"""The picture is of the moment when so many episodes of this phase have ended."""
ROOT = Path(__file__).resolve().parents[2]
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def events() -> list[RunEvent]:
    """All events of a run that is played now."""
    with tempfile.TemporaryDirectory(prefix="live-view-") as state:
        arguments = [*COMMAND.split()[1:], "--json", "--state-dir", state]
        done = subprocess.run(
            [sys.executable, "-m", "governor", *arguments],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
    *lines, _ = done.stdout.splitlines()
    return [msgspec.json.decode(line, type=RunEvent) for line in lines]


def main() -> None:
    told = events()
    now = [told[0].at]
    console = Console(
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        width=COLUMNS,
        highlight=False,
        get_time=lambda: now[0],
    )
    console.print(Text(f"$ {COMMAND}"))
    view = RunView(uid=told[0].uid, phases=3)
    panel = display.Panel(console)
    for event in told:
        now[0] = event.at
        view.on(event)
        if (line := display.printed(event, view, COLUMNS)) is not None:
            console.print(line)
        panel.update(event, view)
        if (view.phase, view.episodes_ended) == MOMENT:
            break
    console.print(panel.of(view))
    svg = console.export_svg(title="Run Governor", code_format=FORMAT, unique_id="live-view")
    (Path(__file__).parent / "live-view.svg").write_text(svg)


if __name__ == "__main__":
    main()

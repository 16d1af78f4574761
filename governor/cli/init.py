"""`governor init [FOLDER]`: a small project that runs as it is, to start from.

Rules:
1. The projects are real files, in `templates/<kind>/`.
2. Nothing is overwritten, and all of the files are written or none.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from governor.errors import NotPermitted, UsageError
from governor.journal import disk_reserve

if TYPE_CHECKING:
    from collections.abc import Callable

RUN: Final = {
    "gym": "governor run run.yaml",
    "tasks": "governor run run.yaml",
    "llm": "python fake_model.py governor run run.yaml",
}
"""Each kind of project, and the command that runs it."""
TEMPLATES: Final = Path(__file__).parent / "templates"


@click.command("init", short_help="Write a project that runs.")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--with",
    "kind",
    type=click.Choice([*RUN]),
    default="gym",
    show_default=True,
    help="gym: an environment, an agent that learns, an analysis. tasks: a graph of tasks alone. llm: a language model in a "
    "game of text.",
)
def command(*, folder: Path, kind: str) -> None:
    """Write a small project into FOLDER (by default the current one): code, a run file and a README.

    It runs as it is: change it step by step to your own. Files that exist are never overwritten.
    """
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted((TEMPLATES / kind).iterdir())
        if path.is_file()
    }
    write(folder, files)
    click.echo(f"wrote {', '.join(files)}{'' if folder == Path() else f' in {folder}'}; next:")
    enter = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    for line in [*enter, *([] if enter else ["governor check run.yaml"]), RUN[kind]]:
        click.echo(f"  {line}")


def write(folder: Path, files: dict[str, str]) -> None:
    """Makes the folder and the files, or nothing of it. Raises UsageError if one of them exists, NotPermitted, and OSError for
    a full disk, which the command line knows.
    """
    place = folder
    with ExitStack() as undo:
        try:
            for place in [*reversed(folder.parents), folder]:
                if not place.exists():
                    place.mkdir()
                    undo.callback(_remove, place.rmdir)
            for name, text in files.items():
                place = folder / name
                with place.open("x", encoding="utf-8") as file:
                    undo.callback(_remove, place.unlink)
                    file.write(text)
        except FileExistsError:
            raise UsageError(
                f"{place} exists already, so nothing is written: name another folder, `governor init FOLDER`"
            ) from None
        except OSError as error:
            error.filename = str(place)
            if disk_reserve.no_room(place, error) is not None:
                raise
            kind = NotPermitted if isinstance(error, PermissionError) else UsageError
            raise kind(f"{place} can't be written: {error.strerror}; name another folder") from error
        undo.pop_all()


def _remove(remove: Callable[[], None]) -> None:
    """It may be gone already, and a folder may have got something of somebody else."""
    with suppress(OSError):
        remove()

"""`governor backup` and `governor restore`: a daemon's state in one file, and the way back."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from governor.cli import ask, drop_output
from governor.cli.rendering import display
from governor.errors import NotPermitted, TryAgain, UsageError
from governor.files import put_in_place, temporary
from governor.locations import default_state_dir
from governor.units import sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from governor.backup.archive import About

STREAM = "-"


@click.command("backup", short_help="Copy a daemon's state into one file.")
@click.argument("file")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="The daemon's state folder. Default: the one that `serve` finds.",
)
@ask.json_option
def backup(file: str, *, state_dir: Path | None, as_json: bool) -> None:
    """Copy journal, keys and all files of runs into FILE, a tar; `-` is standard output. The daemon may work meanwhile: the copy is
    what it would go on from if it had been killed at one moment.

    Run it as the daemon's user on the daemon's machine.
    """
    from governor.backup import archive  # noqa: PLC0415  # not for --help
    from governor.backup.snapshot import snapshot  # noqa: PLC0415  # as above
    from governor.processes import open_files  # noqa: PLC0415  # as above

    if file == STREAM and as_json:
        raise UsageError("--json needs a FILE: the backup itself goes to standard output")
    open_files.raise_limit()
    folder = (state_dir or default_state_dir()).absolute()
    with _written(file) as out, snapshot(folder) as taken:
        about = archive.write(taken, out, machine=socket.gethostname(), state_dir=folder, made_at=time.time())
        out.flush()
        size = None if file == STREAM else out.tell()
    if as_json:
        display.print_json(about)
        return
    where = "" if size is None else f": {file}, {sizes.text(size)}"
    click.echo(f"governor: {_runs(about)}{where}", err=True)


@click.command("restore", short_help="Make a state folder of a backup.")
@click.argument("file")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="A folder without runs; it is made where it is not there. Default: the one that `serve` finds.",
)
@ask.json_option
def restore(file: str, *, state_dir: Path | None, as_json: bool) -> None:
    """Unpack FILE, which `governor backup` has made (`-`: standard input), into a state folder. The next `governor serve` there goes on
    with all runs that had not ended.

    Run it as the daemon's user, before its start.
    """
    from governor.backup.restoring import restore as restored  # noqa: PLC0415  # not for --help
    from governor.daemon.folders import make_private  # noqa: PLC0415  # as above
    from governor.daemon.state_lock import state_lock  # noqa: PLC0415  # as above

    folder = (state_dir or default_state_dir()).absolute()
    with _opened(file) as given:
        make_private(folder)
        with state_lock(folder):
            about = restored(given, folder, name=file)
    if as_json:
        display.print_json(about)
        return
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(about.made_at))
    click.echo(
        f"governor: {_runs(about)}, restored into {folder}, as they were at {made} in {about.state_dir} on {about.machine}",
        err=True,
    )


def _runs(about: About) -> str:
    runs = f"{about.runs} run{'' if about.runs == 1 else 's'}"
    return f"{runs}, {about.unended} of them not ended" if about.unended else runs


@contextmanager
def _written(file: str) -> Iterator[IO[bytes]]:
    """What is written is there once it is whole. Raises UsageError, NotPermitted, NoRoom, TryAgain, OSError."""
    if file == STREAM:
        if sys.stdout.isatty():
            raise UsageError("a backup is no text: name a FILE, or say where standard output goes")
        try:
            with _room(Path("standard output")):
                yield sys.stdout.buffer
        except (
            BrokenPipeError
        ) as error:  # elsewhere the end of the reader is no error: here a copy would be missed
            drop_output()
            raise TryAgain("the reader of standard output has gone: there is no whole backup") from error
        return
    path = Path(file)
    part = temporary(path)
    try:
        with _room(path):
            if path.exists():
                raise UsageError(f"{path} is there already: name a new file")
            out = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"there is no folder {path.parent}") from error
    except OSError as error:
        kind = NotPermitted if isinstance(error, PermissionError) else UsageError
        raise kind(f"{path} can't be written: {error.strerror}") from error
    try:
        with _room(path):
            with out:
                yield out
            put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Raises NoRoom where its disk is full."""
    from governor.journal.disk_reserve import no_room  # noqa: PLC0415  # not for --help

    try:
        yield
    except OSError as error:
        raise no_room(path, error) or error from error


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """Raises UsageError."""
    if file == STREAM:
        yield sys.stdin.buffer
        return
    try:
        given = Path(file).open("rb")  # noqa: SIM115  # so that errors below are not those of the opening
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}") from error
    with given:
        yield given

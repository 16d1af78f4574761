"""`governor keys`: who may reach a daemon from other machines."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from governor.cli import ask
from governor.cli.rendering.lines import say
from governor.errors import UsageError
from governor.locations import KEYS, default_state_dir

if TYPE_CHECKING:
    from governor.network.keys import KeyFolder
    from transport.network.curve import KeyPair

PORT: Final = 5555
ROLES: Final = ("viewer", "operator")

folder_option = click.option(
    "--keys",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The daemon's folder of keys. Default: `keys` in its state folder, as `serve` finds that.",
)


@click.group("keys", short_help="Say who may come in from other machines.")
def command() -> None:
    """Say who may reach the daemon from other machines, with `governor serve --listen` (docs/network.md).

    Run it as the daemon's user on the daemon's machine; `governor reload` has a running daemon read the keys.
    """


@command.command("new", short_help="Make a key and its context.")
@click.argument("name")
@click.option(
    "--role", type=click.Choice(ROLES), required=True, help="A viewer looks; an operator may do everything."
)
@folder_option
@click.option(
    "--endpoint",
    metavar="ENDPOINT",
    help=f"Where the client connects. Default: tcp://, this machine's name, :{PORT}.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The context to write, for the client alone. Default: NAME.toml here.",
)
@click.option(
    "--public",
    metavar="KEY",
    help="A public key that the client has made itself: no context is written.",
)
def new(
    *, name: str, role: str, folder: Path | None, endpoint: str | None, out: Path | None, public: str | None
) -> None:
    """Let NAME come in with a new key: writes the public key into the daemon's folder, and a context file with the secret one. The
    client puts that into ~/.config/run-governor/contexts, and says `governor --context NAME`.
    """
    from governor.network.keys import require_name  # noqa: PLC0415  # not for --help
    from transport.errors import BadKey  # noqa: PLC0415  # as above
    from transport.network.curve import KeyPair, checked  # noqa: PLC0415  # as above

    require_name(name)
    keys = _folder(folder)
    if public is not None:
        try:
            keys.add(name, role=role, public=checked(public))
        except BadKey as error:
            raise UsageError(f"--public {public}: {error}") from error
        say(f"{name} comes in as {role}; the daemon's key is {keys.server_public()}")
        return
    pair = KeyPair.new()
    out = out or Path(f"{name}.toml")
    _write_context(out, endpoint, keys.server_public(), pair)
    try:
        keys.add(name, role=role, public=pair.public)
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    say(f"{name} comes in as {role}, with the context {out}: hand it over on a safe way, and delete it here")


def _write_context(out: Path, endpoint: str | None, server: str, pair: KeyPair) -> None:
    from governor.journal.disk_reserve import no_room  # noqa: PLC0415  # as above
    from governor.network.contexts import Context  # noqa: PLC0415  # as above
    from transport import endpoints  # noqa: PLC0415  # as above
    from transport.errors import BadEndpoint  # noqa: PLC0415  # as above
    from transport.network.curve import ClientKeys  # noqa: PLC0415  # as above

    place = endpoint or f"tcp://{socket.getfqdn()}:{PORT}"
    try:
        if endpoints.parse_connect(place).scheme != "tcp":
            raise BadEndpoint(place, "a network is reached over tcp://address:port")  # noqa: TRY301  # one handler
    except BadEndpoint as error:
        raise UsageError(f"--endpoint: {error.reason}, not {place!r}") from error
    try:
        if out.exists():
            raise UsageError(f"{out} exists already: remove it, or choose another one (--out)")
        Context(endpoint=place, keys=ClientKeys(server=server, pair=pair)).write(out)
    except OSError as error:
        refused = UsageError(f"{out} can't be written: {error.strerror}; choose another one (--out)")
        raise no_room(out, error) or refused from error


@command.command("list", short_help="List who may come in.")
@folder_option
@ask.json_option
def list_keys(*, folder: Path | None, as_json: bool) -> None:
    """List who may come in, with role and public key."""
    keys = _folder(folder)
    found = keys.members()
    if as_json:
        from governor.cli.rendering import display  # noqa: PLC0415  # not for --help
        from transport.network.curve import Members  # noqa: PLC0415  # as above

        display.print_json(Members(found))
        return
    for member in found:
        say(f"{member.name}  {member.role}  {member.public}")
    if not found:
        where = "" if keys.path.is_dir() else f" (there is no folder {keys.path})"
        say(f"nobody comes in{where}: `governor keys new NAME --role viewer|operator`")


@command.command("remove", short_help="Take a key away.")
@click.argument("name")
@folder_option
def remove(*, name: str, folder: Path | None) -> None:
    """Take the key of NAME away. With the next `governor reload` it is worth nothing, on open connections too."""
    _folder(folder).remove(name)
    say(f"{name} is taken away; a running daemon knows it after `governor reload`")


def _folder(given: Path | None) -> KeyFolder:
    from governor.network.keys import KeyFolder  # noqa: PLC0415  # as above

    return KeyFolder(given or default_state_dir() / KEYS)

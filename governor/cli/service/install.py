"""`governor install-service` and `governor uninstall-service`: the daemon below systemd."""

from __future__ import annotations

import click

from governor.cli.rendering.lines import say
from governor.errors import NotPermitted

user_option = click.option("--user", is_flag=True, help="A service of your own, not of the system.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the steps, and do none.")


@click.command("install-service", short_help="Install the daemon below systemd.")
@user_option
@dry_run_option
def install(*, user: bool, dry_run: bool) -> None:
    """Write unit, configuration and a link on PATH, make the system's user run-governor, and have systemd check and read the unit. What is
    there already is kept or brought up to date; a configuration is kept. Does not start it.
    """
    _carry_out("install", user=user, dry_run=dry_run)
    if dry_run:
        return
    if user:
        say("governor: start it with `systemctl --user enable --now run-governor`;", err=True)
        say("governor: it ends with your last session, unless `loginctl enable-linger` keeps it", err=True)
    else:
        say("governor: start it with `systemctl enable --now run-governor`", err=True)


@click.command("uninstall-service", short_help="Take the service back.")
@user_option
@dry_run_option
def uninstall(*, user: bool, dry_run: bool) -> None:
    """Stop and disable the service, and remove its unit and its link on PATH. Configuration, runs and the system's user stay."""
    _carry_out("uninstall", user=user, dry_run=dry_run)


def _carry_out(what: str, *, user: bool, dry_run: bool) -> None:
    from governor.cli.service.installation import Installation, Places  # noqa: PLC0415  # not for --help

    installation = Installation(Places.of_user() if user else Places.of_system(), dry_run=dry_run)
    try:
        getattr(installation, what)()
    except PermissionError as error:
        raise NotPermitted(f"{error.filename}: {error.strerror}; be root, or use --user") from error
    finally:
        for line in installation.told:
            say(f"{'would ' if dry_run else ''}{line}")

"""`governor serve`: the daemon. The guard has been started before (see `governor.__main__`)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click


@click.command("serve", short_help="Start the daemon.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, readable=False),
    help="TOML file; options override it.",
)
@click.option("--slots", type=int, help="Runs in work at the same time.")
@click.option("--queue-limit", type=int, help="Runs that may wait for a slot.")
@click.option(
    "--state-dir",
    metavar="FOLDER",
    help="Journal and runs. Default: $STATE_DIRECTORY or the XDG state folder.",
)
@click.option(
    "--runtime-dir", metavar="FOLDER", help="Sockets. Default: $RUNTIME_DIRECTORY or the XDG runtime folder."
)
@click.option(
    "--ray", "ray_address", metavar="ADDRESS", help="'local' for a Ray head of our own, or host:port."
)
@click.option("--ray-cpus", type=int, help="CPUs that the local Ray head offers.")
@click.option("--ray-token", metavar="FILE", help="File with the token of the Ray cluster.")
@click.option("--socket-group", metavar="GROUP", help="Open the client socket to this group.")
@click.option(
    "--listen",
    metavar="ENDPOINT",
    help="For clients with a key on other machines (docs/network.md): tcp://ADDRESS:PORT.",
)
@click.option("--log-format", metavar="FORMAT", help="console, journal or json.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--stop-grace", metavar="DURATION", help="How long runs may take to stop in order, like 20s.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    config_file: Path | None,
    ray_address: str | None,
    ray_cpus: int | None,
    ray_token: str | None,
    listen: str | None,
    **options: Any,
) -> None:
    """Serve runs until SIGTERM. Exit 75 when another daemon uses the same state folder."""
    from governor import config as configuration  # noqa: PLC0415  # not for --help
    from governor.daemon.systemd import SystemdNotifier  # noqa: PLC0415  # as above

    notifier = SystemdNotifier.from_environ()
    ray = {"ray.address": ray_address, "ray.num_cpus": ray_cpus, "ray.token_path": ray_token}
    network = {"network.listen": listen}

    def read() -> configuration.Config:
        return configuration.load(config_file, options={**options, **ray, **network})

    from governor.daemon import folders  # noqa: PLC0415  # as above

    with notifier.telling(), ExitStack() as taken:
        config = read()
        taken.enter_context(folders.acquired(config))

        from governor import logs  # noqa: PLC0415  # heavy: imported while the forkserver imports its own
        from governor.daemon.daemon import Daemon  # noqa: PLC0415  # as above
        from governor.daemon.metrics.loop_time import TimedSelector  # noqa: PLC0415  # as above

        log_format = config.log_format or logs.choose_format()
        logs.configure(log_format=log_format, level=config.log_level)
        logs.capture_strays(log_format)
        selector = TimedSelector()
        daemon = Daemon(
            config=config, notifier=notifier, reload=read, acquired_folders=taken, selector=selector
        )
        with asyncio.Runner(loop_factory=selector.new_loop) as runner:
            code = runner.run(daemon.serve())
    ctx.exit(code)

"""`governor broker`: a Majordomo broker alone, for any service."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import click

from governor.errors import TryAgain, UsageError

if TYPE_CHECKING:
    from governor import logs
    from transport.broker import BrokerSettings

LISTEN: Final = "tcp://127.0.0.1:5555"
HEARTBEAT: Final = "2.5s"
"""As most Majordomo peers have it."""
QUEUE: Final = 250_000
"""A client may take half of it: the asynchronous client of the ZeroMQ guide sends 100,000 requests before it reads a reply."""


@click.command("broker", short_help="Run a Majordomo broker alone.")
@click.option(
    "--listen",
    metavar="ENDPOINT",
    default=LISTEN,
    show_default=True,
    help="Where clients and workers connect.",
)
@click.option("--workers", metavar="ENDPOINT", help="A socket of their own for workers.")
@click.option(
    "--heartbeat",
    metavar="DURATION",
    default=HEARTBEAT,
    show_default=True,
    help="Interval of both sides.",
)
@click.option(
    "--liveness",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    help="A worker that is silent for so many intervals is gone.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "journal", "json"]),
    help="How lines of the log look. Default: what standard error is fit for.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least level that is logged.",
)
def command(
    *,
    listen: str,
    workers: str | None,
    heartbeat: str,
    liveness: int,
    log_format: logs.LogFormat | None,
    log_level: str,
) -> None:
    """Pass requests for any service to its workers (docs/majordomo.md) until SIGTERM. SIGUSR1 writes counters to the log.

    Clients and workers speak MDP/0.2 or MDP/0.1. There are no keys: tcp is bound to loopback only.
    """
    from governor import logs  # noqa: PLC0415  # not for --help
    from transport.broker import BrokerSettings  # noqa: PLC0415  # as above
    from transport.broker_core import BrokerLimits  # noqa: PLC0415  # as above
    from transport.errors import EndpointInUse, TransportError  # noqa: PLC0415  # as above
    from transport.file_limits import raise_file_limit  # noqa: PLC0415  # as above

    limits = BrokerLimits(heartbeat=_interval(heartbeat), liveness=liveness, queue=QUEUE, queue_total=QUEUE)
    settings = BrokerSettings(client_endpoint=listen, worker_endpoint=workers, limits=limits)
    log_format = log_format or logs.choose_format()
    logs.configure(log_format=log_format, level=log_level, process="broker")
    logs.capture_strays(log_format)
    raise_file_limit()
    try:
        asyncio.run(_serve(settings))
    except EndpointInUse as error:
        raise TryAgain(f"{error}: end the process that listens there, or choose another endpoint") from error
    except TransportError as error:
        raise UsageError(str(error)) from error


def _interval(text: str) -> float:
    from governor.units import durations  # noqa: PLC0415  # as above

    try:
        seconds = durations.seconds(float(text) if text.replace(".", "", 1).isdigit() else text)
    except ValueError as error:
        raise UsageError(f"--heartbeat {text}: {error}") from error
    if seconds <= 0:
        raise UsageError(f"--heartbeat {text}: a heartbeat takes time")
    return seconds


async def _serve(settings: BrokerSettings) -> None:
    from governor import logs  # noqa: PLC0415  # as above
    from transport.broker import Broker  # noqa: PLC0415  # as above
    from transport.broker_events import WARNINGS  # noqa: PLC0415  # as above

    log = logs.get_logger()

    def on_event(name: str, **data: Any) -> None:
        (log.warning if name in WARNINGS else log.info)(name, **data)

    broker = Broker(settings, on_event=on_event)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, broker.stop)
    async with broker:
        loop.add_signal_handler(signal.SIGUSR1, lambda: log.info("broker.counters", **broker.counters))
        await broker.stopped()

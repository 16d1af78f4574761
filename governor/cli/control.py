"""The verbs that steer runs and the daemon: `pause`, `continue`, `set`, `abort`, `cancel`, `requeue`, `drain`, `undrain`, `shutdown`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli import ask, groups
from governor.cli.rendering import display
from governor.cli.rendering.lines import say
from governor.messages import Done

if TYPE_CHECKING:
    from governor.messages import Changed

LONGEST_VALUE: Final = 60
"""Characters of a value that are shown."""

reason_option = click.option("--reason", default="", help="Kept in the run's record.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say whether that would change something, and change nothing."
)


@click.command("pause", short_help="Begin nothing further of a run.")
@ask.run_argument
@click.option("--hard", is_flag=True, help="Interrupt what runs, and leave the slot to others.")
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def pause(broker: str | None, *, uid: str, hard: bool, reason: str, dry_run: bool, as_json: bool) -> None:
    """Have no further episode or task of RUN begin, until `governor continue RUN`, also over a restart of the daemon. What runs, ends;
    with --hard it is interrupted, and done again later.
    """
    if groups.is_group(uid):
        changed = ask.ask(
            broker, lambda executor: executor.pause_group(uid, reason, hard=hard, dry_run=dry_run)
        )
        groups.say_changed(changed, "are paused", as_json=as_json)
        return
    found = ask.ask(broker, lambda executor: executor.pause(uid, reason, hard=hard, dry_run=dry_run))
    _say_changed(found, "is paused", "is paused already", as_json=as_json)


@click.command("continue", short_help="End the pause of a run.")
@ask.run_argument
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def go_on(broker: str | None, *, uid: str, reason: str, dry_run: bool, as_json: bool) -> None:
    """Have a paused RUN go on, also where one of its conditions has asked for the pause."""
    if groups.is_group(uid):
        changed = ask.ask(broker, lambda executor: executor.continue_group(uid, reason, dry_run=dry_run))
        groups.say_changed(changed, "go on", as_json=as_json)
        return
    found = ask.ask(broker, lambda executor: executor.continue_(uid, reason, dry_run=dry_run))
    _say_changed(found, "goes on", "is not paused", as_json=as_json)


def _say_changed(found: Changed, done: str, was: str, *, as_json: bool) -> None:
    subject = f"run {found.uid}" if found.uid else "the daemon"
    if as_json:
        display.print_json(found)
    elif found.dry_run and found.changed:
        say(f"{subject} is {found.state}: that would change it")
    else:
        say(f"{subject} {done if found.changed else was}")


@click.command("set", short_help="Change values of a run's file.")
@ask.run_argument
@click.argument("values", metavar="KEY=VALUE...", nargs=-1, required=True)
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def set_values(
    broker: str | None, *, uid: str, values: tuple[str, ...], reason: str, dry_run: bool, as_json: bool
) -> None:
    """Give keys of the run file of RUN other values, all or none, as `governor set RUN limits.wall_clock=2h train.simulate.workers=4`. A key
    is a path with dots, as of `governor submit --set`; the answer says from when on each value counts.
    """
    from governor.run_file.options import values_of  # noqa: PLC0415  # pydantic is slow; other verbs do without

    wanted = values_of(values)
    if groups.is_group(uid):
        changed = ask.ask(broker, lambda executor: executor.set_group(uid, wanted, reason, dry_run=dry_run))
        groups.say_changed(changed, "are changed", as_json=as_json)
        return
    found = ask.ask(broker, lambda executor: executor.set(uid, wanted, reason, dry_run=dry_run))
    if as_json:
        display.print_json(found)
        return
    for each in found.values:
        when = f", {each.since}" if each.since else ""
        say(f"{each.key}: {_shown(each.before)} -> {_shown(each.after)}{when}")
    _say_changed(found, "is changed", "has these values already", as_json=as_json)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


@click.command("abort", short_help="End a run in order.")
@ask.run_argument
@reason_option
@ask.json_option
@click.pass_obj
def abort(broker: str | None, *, uid: str, reason: str, as_json: bool) -> None:
    """Abort RUN. Its end is an event of the run: `governor watch RUN` waits for it."""
    if groups.is_group(uid):
        changed = ask.ask(broker, lambda executor: executor.abort_group(uid, reason))
        groups.say_changed(changed, "are being aborted", as_json=as_json)
        return
    ask.ask(broker, lambda executor: executor.abort(uid, reason=reason))
    if as_json:
        display.print_json(Done())
    else:
        say(f"run {uid} is being aborted; `governor watch {uid}` waits for its end")


def _work_options(command: click.decorators.FC) -> click.decorators.FC:
    for option in (
        click.option("--phase", metavar="NAME", help="Refuse if another phase is at work."),
        click.option("--task", metavar="ID", help="This task: all its runs, or one, as 'ID[2]'."),
        click.option("--episode", metavar="N", type=ask.NUMBER, help="The episode with this index."),
    ):
        command = option(command)
    return command


@click.command("cancel", short_help="End one episode or task of a run.")
@ask.run_argument
@_work_options
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def cancel(
    broker: str | None, /, *, uid: str, episode: int | None, task: str | None, as_json: bool, **how: Any
) -> None:
    """End one episode or task of the phase of RUN that is at work, as `cancelled`, whether or not it has begun. The phase goes on
    without it.
    """
    found = ask.ask(broker, lambda executor: executor.cancel(uid, episode=episode, task=task, **how))
    what = f"cancels {_named(episode, task)}"
    _say_changed(found, what, "has ended that already, or cancels it already", as_json=as_json)


@click.command("requeue", short_help="Do one episode or task of a run again.")
@ask.run_argument
@_work_options
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def requeue(
    broker: str | None, /, *, uid: str, episode: int | None, task: str | None, as_json: bool, **how: Any
) -> None:
    """End what runs of one episode or task of the phase of RUN that is at work, and do it again. It costs none of its retries. What has
    ended stays so: `governor resume RUN` does again what failed, once the run has ended.
    """
    found = ask.ask(broker, lambda executor: executor.requeue(uid, episode=episode, task=task, **how))
    what = f"does {_named(episode, task)} again, if it is at work"
    _say_changed(found, what, "has ended that already", as_json=as_json)


def _named(episode: int | None, task: str | None) -> str:
    return f"task {task}" if task is not None else f"episode {episode}"


@click.command("drain", short_help="Begin no further run.")
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def drain(broker: str | None, *, reason: str, dry_run: bool, as_json: bool) -> None:
    """Have the daemon begin no queued run, until `governor undrain`, also over its restart. Runs in work go on, and submitted ones wait
    in the queue.
    """
    found = ask.ask(broker, lambda executor: executor.drain(reason, dry_run=dry_run))
    _say_changed(found, "is drained: it begins no further run", "is drained already", as_json=as_json)


@click.command("undrain", short_help="Begin runs again.")
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def undrain(broker: str | None, *, reason: str, dry_run: bool, as_json: bool) -> None:
    """Have the daemon begin queued runs again. It takes back `governor shutdown --when-idle`, too."""
    found = ask.ask(broker, lambda executor: executor.undrain(reason, dry_run=dry_run))
    _say_changed(found, "begins runs again", "is not drained", as_json=as_json)


@click.command("shutdown", short_help="End the daemon.")
@click.option("--when-idle", is_flag=True, help="Begin no further run, and end once none is in work.")
@reason_option
@dry_run_option
@ask.json_option
@click.pass_obj
def shutdown(broker: str | None, *, when_idle: bool, reason: str, dry_run: bool, as_json: bool) -> None:
    """End the daemon, as SIGTERM does: its runs are interrupted, and go on at its next start. With --when-idle those in work come to
    their end before; queued runs wait for the next start.
    """
    found = ask.ask(broker, lambda executor: executor.shutdown(reason, when_idle=when_idle, dry_run=dry_run))
    done = "ends once no run is in work" if when_idle else "ends"
    _say_changed(found, done, "ends when it is idle already", as_json=as_json)

"""`fleetctl daemon run`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetctl.cli.account_options import Place as DatabasePlace
from fleetctl.cli.account_options import database_options
from fleetctl.cli.context import App, app
from fleetctl.cli.daemon_options import Which, scope_of
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.errors import CannotTell, DatabaseError, FleetctlError, SchemaMismatch, UsageError
from fleetctl.units import Duration

if TYPE_CHECKING:
    from fleetctl.recovery.daemon import Asked, Daemon
    from fleetctl.recovery.passes import Passed

_BLIND_EXIT_CODE = 3
_LEAST_EVERY_S, _MOST_EVERY_S = 1, 3600
_NOTIFY = "FLEETCTL_NOTIFY"  # channels, separated by spaces: they can be secrets, which arguments are not for
_AGAIN_S = (5.0, 10.0, 20.0, 40.0, 60.0)  # between tries to begin at all
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("run")
@click.option("--once", is_flag=True, help="One pass, then end; exit code 3 where it could see nothing.")
@click.option("--act", "acts", is_flag=True, help="Do what is decided. Without it, it is only written down.")
@click.option("--operator", is_flag=True, help="All runs of the cluster, not only your own.")
@click.option("--every", metavar="DURATION", help="The longest time between two passes. [default: 30s]")
@click.option("--listen", metavar="ADDRESS:PORT", help="Serve /metrics and /health there, on the loopback.")
@click.option("--patterns", type=_FILE, metavar="FILE", help="What to look for in logs, beside what is built in.")
@click.option("--topology", type=_FILE, metavar="FILE", help="topology.conf, or `NODE SWITCH` lines.")
@click.option("--fence", metavar="COMMAND", help="COMMAND NODE ends with 0 only where the node is proved dead.")
@click.option(
    "--notify",
    "channels",
    metavar="CHANNEL",
    multiple=True,
    help=f"webhook:URL, mail:ADDRESS or command:PROGRAM [env {_NOTIFY}].",
)
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    help="Folder where the nodes publish (`shared` in site.json) [env FLEETCTL_NODES].",
)
@database_options
@json_option
def command(
    once: bool,
    acts: bool,
    operator: bool,
    every: str | None,
    listen: str | None,
    patterns: Path | None,
    topology: Path | None,
    fence: str | None,
    channels: tuple[str, ...],
    shared: Path | None,
    place: DatabasePlace,
    as_json: bool,
) -> int:
    """Watch runs, decide what each needs, and with --act do it.

    Without --operator it looks after your own runs, with your rights. It leaves one line a pass on stderr. SIGTERM
    ends it after the action that is under way. FLEETCTL_DAEMON_STOP names a file: while it is there, nothing is done.

    \b
    Example:
      fleetctl daemon run --once
      fleetctl daemon run --act --listen 127.0.0.1:9477
      fleetctl daemon run --operator --act --topology /etc/slurm/topology.conf
    """
    from fleetctl.recovery.daemon import Asked
    from fleetctl.recovery.notify import channels_of

    here = app()
    said = shared or here.environ.get("FLEETCTL_NODES")
    asked = Asked(
        scope=scope_of(Which(operator, None)),
        operator=operator,
        acts=acts,
        every_s=30.0 if every is None else _every_s(every),
        listen=listen or "",
        patterns=patterns,
        topology=topology,
        fence=fence or "",
        channels=channels_of([*channels, *here.environ.get(_NOTIFY, "").split()]),
        shared=Path(said) if said else None,
    )
    daemon = _begun(here, asked, place, once=once)
    try:
        return _run(daemon, once=once, as_json=as_json)
    finally:
        daemon.close()


def _every_s(every: str) -> float:
    try:
        every_s = Duration.parse(every).seconds
    except ValueError as error:
        raise UsageError(f"--every {every}: expected {error}") from None
    if not _LEAST_EVERY_S <= every_s <= _MOST_EVERY_S:
        raise UsageError(f"--every {every}: between {_LEAST_EVERY_S} s and an hour")
    return float(every_s)


def _begun(here: App, asked: Asked, place: DatabasePlace, *, once: bool) -> Daemon:
    """A daemon that may begin to work; it waits until Slurm and the database are there, unless it runs once.

    :raises FleetctlError: waiting would not help.
    """
    from fleetctl.recovery.sd_notify import manager_of

    for attempt in range(1 << 30):
        try:
            return _make(here, asked, place)
        except (CannotTell, DatabaseError) as error:
            if once or isinstance(error, SchemaMismatch):
                raise
            manager_of(here.environ).ready(error.message)  # it is as ready as it can be: to wait is its work
            pause_s = _AGAIN_S[min(attempt, len(_AGAIN_S) - 1)]
            note(f"fleetctl: {error.message}; the next try is in {pause_s:.0f} s")
            here.clock.sleep(pause_s)
    raise FleetctlError("it never began")


def _make(here: App, asked: Asked, place: DatabasePlace) -> Daemon:
    from fleetctl.accounting.database import database_url, open_database
    from fleetctl.cli.site import site_of
    from fleetctl.recovery.daemon import begin

    url = database_url(here.environ, place.url)
    engine = open_database(url, force_network=place.on_network_disk, create=True)
    try:
        return begin(asked, site_of(here, ()), engine, here.environ, here.clock, _say(here))
    except BaseException:
        engine.dispose()
        raise


def _say(here: App) -> Callable[[str], None]:
    """With the time, unless the journal of systemd writes it (systemd.exec.5, JOURNAL_STREAM)."""
    timed = "JOURNAL_STREAM" not in here.environ
    return lambda text: note(f"{here.clock.now().astimezone():%Y-%m-%d %H:%M:%S} {text}" if timed else text)


def _run(daemon: Daemon, *, once: bool, as_json: bool) -> int:
    loop = daemon.loop
    before = {number: signal.signal(number, loop.end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        if not once:
            loop.forever(_shown(as_json))
            return 0
        one = loop.once()
        loop.close()
        if as_json:
            from fleetctl.recovery.passes import as_json as told

            print_json(told(one))
        return _BLIND_EXIT_CODE if one.is_blind else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shown(as_json: bool) -> Callable[[Passed], None]:
    """One JSON document a line, for whoever reads a daemon's output as it comes."""

    def show(one: Passed) -> None:
        if as_json:
            import json

            from fleetctl.recovery.passes import as_json as told

            click.echo(json.dumps(told(one)))

    return show

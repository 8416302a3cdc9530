"""`fleetctl account sync`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.account_options import Asked, Place, database_options, opened, zone_of
from fleetctl.cli.account_time import iso, moment, shown
from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import store_of, user_name
from fleetctl.errors import FleetctlError, UsageError
from fleetctl.units import Duration

if TYPE_CHECKING:
    from fleetctl.accounting.sync import Synced
    from fleetctl.accounting.sync_rest import Rest
    from fleetctl.accounting.sync_state import Progress

_LEAST_EVERY_S = 60  # slurmdbd answers everybody: sacct.1 asks not to be called in loops


@click.command("sync")
@click.option(
    "--since", metavar="TIME", help="Go back to 2026-01, 90d, ... [default: as far as before, the first time 35d]"
)
@click.option("--all-steps", is_flag=True, help="Read steps also where they tell nothing of why a job failed.")
@click.option("--every", metavar="DURATION", help="Do not end; sync again so long after each sync (1m or more).")
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    help="Folder where the nodes publish (`shared` in site.json) [env FLEETCTL_NODES].",
)
@database_options
@json_option
def command(
    since: str | None, all_steps: bool, every: str | None, shared: Path | None, place: Place, as_json: bool
) -> None:
    """Read what is new in Slurm's accounting, in run directories and from the nodes into the database.

    Every sync ends in a whole state, whatever stops it, and may be repeated at will.

    \b
    Example:
      fleetctl account sync
      fleetctl account sync --since 2025-01
      fleetctl account sync --every 10m
    """
    here = app()
    pause_s = None if every is None else _pause_s(every)
    since_s = None if since is None else _since_s(here, since)
    said = shared or here.environ.get("FLEETCTL_NODES")
    nodes = Path(said) if said else None
    if pause_s is None:
        _sync(here, place, since_s, nodes, all_steps=all_steps, as_json=as_json)
        return
    while True:
        try:
            _sync(here, place, since_s, nodes, all_steps=all_steps, as_json=as_json)
            since_s = None  # that far back is read now
        except FleetctlError as error:
            note(f"fleetctl: {error.message}; the next try is in {Duration(pause_s)}")
        here.clock.sleep(pause_s)


def _pause_s(every: str) -> int:
    try:
        pause_s = Duration.parse(every).seconds
    except ValueError as error:
        raise UsageError(f"--every {every}: expected {error}") from None
    if pause_s < _LEAST_EVERY_S:
        raise UsageError(f"--every {every}: slurmdbd is everybody's", remedy=f"{Duration(_LEAST_EVERY_S)} or more")
    return pause_s


def _since_s(here: App, since: str) -> int:
    try:
        return moment(since, zone_of(Asked(since, None, False)), here.clock.now())
    except ValueError as error:
        raise UsageError(f"--since {since}: expected {error}") from None


def _sync(here: App, place: Place, since_s: int | None, nodes: Path | None, *, all_steps: bool, as_json: bool) -> None:
    from fleetctl.accounting.database import one_sync
    from fleetctl.accounting.sync import sync
    from fleetctl.accounting.sync_rest import read_rest
    from fleetctl.slurm.connect import connect_books

    books = connect_books(here.environ, here.clock, note if here.debug else None)
    with opened(place, writing=True) as engine, one_sync(engine), _uncollected():
        with _progress(quiet=as_json) as progress:
            synced = sync(
                engine,
                books,
                here.clock,
                since_s=since_s,
                user=user_name(),
                note=note,
                progress=progress,
                all_steps=all_steps,
            )
        rest = read_rest(engine, books, synced, store_of(here), nodes, note)
    if as_json:
        print_json(_json(synced, rest))
        return
    note(_words(synced, rest))
    if synced.is_first and since_s is None:
        note("the last 35 days were read; `fleetctl account sync --since 2025-01` reads older records")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles: a sync makes millions of tuples without any, and it took a fifth of the time."""
    import gc

    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, else a line for each reply but the only one."""
    import sys

    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            tasks = {}

            def show(at: Progress) -> None:
                if at.phase not in tasks:
                    tasks[at.phase] = bar.add_task(at.phase.value, total=at.total)
                bar.update(tasks[at.phase], completed=at.done)

            yield show
    else:
        yield _line


def _line(at: Progress) -> None:
    if at.done < at.total:
        note(f"{at.phase.value}: {100 * at.done // at.total} %, {at.rows:,} rows")


def _words(synced: Synced, rest: Rest) -> str:
    counts, state = synced.counts.plus(rest.counts), synced.state
    parts = [
        f"{synced.windows:,} window{'s' * (synced.windows != 1)}",
        f"{counts.new:,} new",
        f"{counts.changed:,} changed",
        f"{rest.in_quarantine:,} in quarantine",
    ]
    if synced.purged:
        parts.insert(3, f"{synced.purged:,} gone from Slurm")
    if rest.runs:
        parts.insert(3, f"{rest.runs:,} run{'s' * (rest.runs != 1)}")
    reached = "no time is vouched for yet" if state.to_s is None else f"data up to {shown(state.to_s, UTC)} UTC"
    return f"{', '.join(parts)}; {reached}"


def _json(synced: Synced, rest: Rest) -> dict[str, Any]:
    counts, state = synced.counts.plus(rest.counts), synced.state
    return {
        "cluster": synced.cluster.name,
        "as_of": iso(synced.began_s),
        "from": None if state.from_s is None else iso(state.from_s),
        "to": None if state.to_s is None else iso(state.to_s),
        "windows": synced.windows,
        "new": counts.new,
        "changed": counts.changed,
        "unchanged": counts.unchanged,
        "quarantined": counts.quarantined,
        "in_quarantine": rest.in_quarantine,
        "steps": synced.steps,
        "purged": synced.purged,
        "waiting": state.waiting,
        "sees_all": synced.sees_all,
        "runs": rest.runs,
        "node_events": rest.events,
        "node_verdicts": rest.verdicts,
    }

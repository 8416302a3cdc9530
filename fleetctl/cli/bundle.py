"""`fleetctl bundle`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.account_options import Place as DatabasePlace
from fleetctl.cli.account_options import database_options
from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import run_argument, slurm_of, store_of

if TYPE_CHECKING:
    from fleetctl.recovery.bundle import Member, Unread
    from fleetctl.rundir.history import History
    from fleetctl.rundir.store import RunDir

_MOST_NODES = 64  # of the newest attempts


@click.command()
@run_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="[default: RUN-bundle.tar.gz, here]"
)
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    help="Folder where the nodes publish (`shared` in site.json) [env FLEETCTL_NODES].",
)
@database_options
@json_option
def command(run: str, output: Path | None, shared: Path | None, place: DatabasePlace, as_json: bool) -> int:
    """Pack what is known of a run into one archive for a person who looks into it.

    Its record and events, the end of its logs, evidence of hangs, Slurm's accounting, what its nodes' checks found,
    and the daemon's journal of it. Values of environment variables and what looks like a secret are taken out, and the
    env_file is never in it; read the archive before you send it away.

    \b
    Example:
      fleetctl bundle RUN
      fleetctl bundle RUN -o /tmp/for-support.tar.gz
    """
    from fleetctl.recovery.bundle import pack

    here = app()
    found = store_of(here).find(run)
    path = output or here.cwd / f"{found.run_id}-bundle.tar.gz"
    said = shared or here.environ.get("FLEETCTL_NODES")
    members = _members(here, found, Path(said) if said else None, place)
    names, unread = pack(path, f"{found.run_id}-bundle", members, here.clock.now())
    if as_json:
        left = {one.name: one.why for one in unread}
        print_json({"run_id": found.run_id, "file": str(path), "members": names, "left_out": left})
    else:
        click.echo(str(path))
        for one in unread:
            note(f"not in it: {one.name}: {one.why}")
    return 0


def _members(here: App, run: RunDir, shared: Path | None, place: DatabasePlace) -> Iterator[Member | Unread]:
    """What lies in the folder, then what others know, each on its own: one that fails leaves the others."""
    from fleetctl.errors import FleetctlError
    from fleetctl.recovery.bundle import Unread, document, gather
    from fleetctl.recovery.read_run import read_run
    from fleetctl.recovery.read_wire import AskRun

    known, untold = _known(run)
    if untold:
        yield Unread("values of the env_file", untold)
    yield from gather(run.path, known)
    told = read_run(AskRun(os.fsencode(run.path), run.run_id, (None,)))
    history = told.read.facts.history if told.read is not None else None
    for name, ask in (
        ("sacct.json", lambda: _accounting(here, _whole(history, told.trouble))),
        ("nodes.json", lambda: _nodes(_whole(history, told.trouble), shared)),
        ("daemon.json", lambda: _journal(here, run.run_id, place)),
    ):
        try:
            yield document(name, ask(), known)
        except (FleetctlError, OSError, ValueError) as error:
            yield Unread(name, getattr(error, "message", str(error)))


def _whole(history: History | None, trouble: str) -> History:
    """:raises CannotTell: its record cannot be read."""
    from fleetctl.errors import CannotTell

    if history is None:
        raise CannotTell(f"the run's record cannot be read: {trouble}")
    return history


def _known(run: RunDir) -> tuple[frozenset[str], str]:
    """Values that must not leave: secrets in the spec's environment, and what the env_file holds; and why that is not
    known. The folder may be another user's."""
    from fleetctl.errors import FleetctlError
    from fleetctl.recovery.bundle import read_object, run_folder
    from fleetctl.recovery.redact import secret_values
    from fleetctl.spec.env_file import read_env_file

    with run_folder(run.path) as root:
        spec, record = read_object(root, "spec.json"), read_object(root, "run.json")
    values = secret_values(spec)
    named, source = spec.get("env_file"), record.get("spec_source")
    if not isinstance(named, str):
        return values, "" if spec else "spec.json cannot be read: whether there is an env_file is not known"
    try:
        path = Path(source if isinstance(source, str) else "/").parent / named
        return values | frozenset(read_env_file(path).values()), ""
    except (FleetctlError, ValueError) as error:
        why = error.message if isinstance(error, FleetctlError) else str(error)
        return values, f"they may stand in the logs of this bundle: {why}"


def _accounting(here: App, history: History) -> list[dict[str, Any]]:
    """Slurm's records of the run's jobs."""
    from datetime import timedelta

    import msgspec

    from fleetctl.slurm.model import JobId

    ids = {attempt.job_id for attempt in history.attempts} | ({history.job_id} if history.job_id else set())
    if not ids:
        return []
    since = history.record.created_at - timedelta(days=1)
    wanted = sorted({JobId.parse(text) for text in ids})
    records = slurm_of(here).history(since=since, ids=wanted)
    return [{**msgspec.to_builtins(one), "id": str(one.id), "state": str(one.state)} for one in records]


def _nodes(history: History, shared: Path | None) -> dict[str, list[Any]]:
    """What the checks of the nodes of its newest attempts found, the newest verdicts last."""
    from fleetctl.errors import CannotTell
    from fleetctl.health.spool import read_history
    from fleetctl.health.store import Foreign
    from fleetctl.health.wire import to_wire
    from fleetctl.slurm.hosts import expand

    if shared is None:
        raise CannotTell("nobody said where the nodes publish: --shared DIR, or FLEETCTL_NODES")
    nodes = dict.fromkeys(node for attempt in reversed(history.attempts) for node in expand(attempt.nodes))
    found = dict[str, list[Any]]()
    for node in [*nodes][:_MOST_NODES]:
        try:
            found[node] = [to_wire(verdict) for verdict in read_history(str(shared), node)]
        except FileNotFoundError:
            found[node] = []
        except Foreign as error:
            raise CannotTell(f"{shared}: {error}") from None
    return found


def _journal(here: App, run_id: str, place: DatabasePlace) -> list[dict[str, Any]]:
    """What every daemon that this database knows has written of the run, and of elements of it that it acted on."""
    from fleetctl.cli.account_options import opened
    from fleetctl.cli.daemon_explain import told_json, told_of
    from fleetctl.recovery.recall import places

    found = list[dict[str, Any]]()
    with opened(place) as engine:
        for one in places(engine):
            told = told_of(engine, one, run_id, here.clock.now())
            found.append({"cluster": one.cluster, "scope": one.scope, **told_json(run_id, told)})
    return found

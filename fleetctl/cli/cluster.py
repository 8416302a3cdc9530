"""`fleetctl cluster`: what this site's Slurm wants and can."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, print_fields, print_json, print_table


@click.group()
def command() -> None:
    """Learn what this cluster's Slurm wants and can.

    \b
    Example:
      fleetctl cluster probe
    """


@command.command()
@click.option("--test-job/--no-test-job", default=True, help="Prove with one held job that lookups find comments.")
@click.option("--partition", metavar="NAME", help="Partition of the test job, where there is no default.")
@click.option("--account", metavar="NAME", help="Account of the test job, where one must be named.")
@json_option
def probe(test_job: bool, partition: str | None, account: str | None, as_json: bool) -> None:
    """Ask the cluster what it is, and keep the answer for `submit`.

    A held one-minute job is submitted, looked up by its comment and cancelled; it never runs.

    \b
    Example:
      fleetctl cluster probe
      fleetctl cluster probe --no-test-job --json
    """
    import os
    import pwd

    import msgspec

    from fleetctl.rundir.files import explained
    from fleetctl.slurm import profile
    from fleetctl.slurm.connect import connect
    from fleetctl.slurm.prove import prove_comments

    here = app()
    slurm = connect(here.environ, here.clock, note if here.debug else None)
    slurm.ping()  # no test job for a controller that does not answer
    comments = profile.Comments.UNPROVEN
    if test_job:
        options = [f"--partition={partition}"] if partition else []
        options += [f"--account={account}"] if account else []
        with tempfile.TemporaryDirectory(prefix="fleetctl-probe-") as folder:
            proof = prove_comments(slurm, pwd.getpwuid(os.geteuid()).pw_name, Path(folder), options)
        comments = proof.comments
        for line in proof.notes:
            note(line)
    path = profile.profile_path(here.runs_root, here.environ)
    taken = profile.probe(slurm, here.clock.now(), path, proved=comments)
    with explained(path, "write"):
        profile.save_profile(path, taken)
    note(f"saved as {path}")
    shown = msgspec.to_builtins(taken)
    if as_json:
        print_json(shown)
        return
    partitions = shown.pop("partitions")
    print_fields([(name, _shown(value)) for name, value in shown.items()])
    click.echo()
    columns = ("name", "is_default", "state", "max_time_s", "default_time_s", "nodes")
    print_table(columns, [[_shown(row[column]) for column in columns] for row in partitions])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)

"""`fleetctl account jobs`: the records of Slurm's accounting, one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fleetctl.cli.account_options import (
    Asked,
    Form,
    Place,
    cluster_option,
    database_options,
    form_options,
    reading,
    window_options,
)
from fleetctl.cli.output import note
from fleetctl.cli.runs import complete_run

if TYPE_CHECKING:
    from fleetctl.accounting.read_jobs import Job
    from fleetctl.cli.account_print import Column

_LIMIT = 100
_GONE = "gone"  # in the place of an end: Slurm has forgotten it
_WIDE = ("NAME", "PARTITION", "CAUSE", "STARTED", "HELD", "NODES")
_DEFINITION = (
    "one row for each attempt that Slurm made of a job; gpu_seconds: GPUs held from its start to its end, suspended "
    "time included, whatever the window; of an open record up to when the controller last confirmed it"
)


@click.command("jobs")
@window_options
@click.option("--user", metavar="NAME", help="Only this user's.")
@click.option("--state", metavar="STATE", help="Only those in this state, in Slurm's word: FAILED, NODE_FAIL, RUNNING.")
@click.option("--run", metavar="RUN", shell_complete=complete_run, help="Only those of this run.")
@click.option("--limit", type=click.IntRange(min=0), default=_LIMIT, show_default=True, help="At most so many; 0: all.")
@cluster_option
@database_options
@form_options
def command(
    asked: Asked,
    user: str | None,
    state: str | None,
    run: str | None,
    limit: int,
    clusters: tuple[str, ...],
    place: Place,
    form: Form,
) -> None:
    """Every record of Slurm's accounting that touches a window: open ones first, then those that ended last.

    A job that was requeued has a record for each of its attempts.

    \b
    Example:
      fleetctl account jobs --since 7d --state NODE_FAIL
      fleetctl account jobs --run RUN --limit 0 --json | jq '[.rows[].gpu_seconds] | add'
    """
    from msgspec.structs import replace

    from fleetctl.accounting.framing import text_of
    from fleetctl.accounting.read_jobs import read_jobs
    from fleetctl.accounting.read_runs import find_run
    from fleetctl.cli.account_print import print_rows

    with reading(place, clusters, asked) as (connection, about):
        assert about.window is not None, "a window was asked for"
        found = read_jobs(
            connection,
            about.window,
            about.cluster_ids,
            user=None if user is None else text_of(user),
            state=None if state is None else text_of(state.upper()),
            run_id=None if run is None else find_run(connection, text_of(run)),
            limit=limit + 1 if limit else None,  # one more tells whether there are more
        )
        rows = (_row(job, form) for job in _at_most(found, limit))
        print_rows(_shown(_columns()), rows, form, replace(about, definition=_DEFINITION))


def _at_most(found: Iterator[Job], limit: int) -> Iterator[Job]:
    for number, job in enumerate(found):
        if limit and number >= limit:
            note(f"only the first {limit}: --limit 0 shows all")
            return
        yield job


def _shown(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """A terminal has not the width for what others tell: --json and --csv have all."""
    from msgspec.structs import replace

    left_out = _WIDE if sys.stdout.isatty() else ()
    return tuple(replace(one, heading="") if one.heading in left_out else one for one in columns)


def _columns() -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    return (
        Column("cluster", ""),
        Column("job", "JOB", Unit.ID),
        Column("record", ""),
        Column("raw_id", "", Unit.NUMBER),
        Column("run", "RUN"),
        Column("name", "NAME"),
        Column("user", "USER"),
        Column("account", "ACCOUNT"),
        Column("partition", "PARTITION"),
        Column("qos", ""),
        Column("state", "STATE", Unit.ID),
        Column("cause", "CAUSE"),
        *(Column(key, "", Unit.NUMBER) for key in ("exit_status", "exit_signal", "derived_status", "derived_signal")),
        Column("submitted", "", Unit.TIME),
        Column("eligible", "", Unit.TIME),
        Column("started", "STARTED", Unit.TIME),
        Column("ended", "ENDED", Unit.TIME),
        Column("alive", "", Unit.TIME),
        Column("purged", "", Unit.TIME),
        Column("held_s", "HELD", Unit.SECONDS),
        Column("suspended_s", "", Unit.SECONDS),
        Column("limit_s", "", Unit.SECONDS),
        Column("nodes", "NODES", Unit.NUMBER),
        Column("gpus", "GPUS", Unit.NUMBER),
        Column("gpu_models", ""),
        Column("gpu_seconds", "", Unit.NUMBER),
        Column("gpu_hours", "GPU-HOURS", Unit.HOURS),
        Column("billing", "", Unit.NUMBER),
        Column("node_list", ""),
        Column("failed_node", ""),
        Column("restarts", "", Unit.NUMBER),
        Column("reason", ""),
    )


def _row(job: Job, form: Form) -> tuple[object, ...]:
    from fleetctl.cli.account_usage import hours_of

    ids = (job.cluster, job.job, job.record, job.raw_id, job.run_id, job.name, job.user, job.account)
    states = (job.partition, job.qos, job.state, job.cause or None)
    exits = (job.exit_status, job.exit_signal, job.derived_status, job.derived_signal)
    is_gone = form is Form.TABLE and job.ended_s is None and job.purged_s is not None
    ended = _GONE if is_gone else job.ended_s
    times = (job.submitted_s, job.eligible_s, job.started_s, ended, job.alive_s, job.purged_s)
    spans = (job.held_s, job.suspended_s, job.limit_s)
    held = (job.nodes, job.gpus, job.gpu_models or None, job.gpu_seconds, hours_of(job.gpu_seconds))
    rest = (job.billing, job.node_list or None, job.failed_node or None, job.restarts, job.reason or None)
    return (*ids, *states, *exits, *times, *spans, *held, *rest)

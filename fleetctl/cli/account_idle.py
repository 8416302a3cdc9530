"""`fleetctl account idle`: GPUs that were held and did nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.cli.account_by import by_option
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

if TYPE_CHECKING:
    from fleetctl.accounting.idle import Idle, Kind
    from fleetctl.cli.account_print import Column

_BY = ("user", "account", "partition", "run", "job", "cluster")
_DEFINITION = (
    "idle: held GPU time without a training step. Of runs: startup, hang, teardown, suspended, spare nodes, by their "
    "ledger. Of other jobs: suspended, and low_power where a GPU took less than --idle-watts on average from prolog to "
    "epilog. unknown: no ledger and no measured energy; it is neither idle nor busy"
)


@click.command("idle")
@window_options
@by_option(_BY, "user")
@click.option(
    "--idle-watts",
    type=click.FloatRange(min=0, min_open=True),
    metavar="W",
    help="Below this mean power a GPU was idle. [default: energy alone decides nothing]",
)
@cluster_option
@database_options
@form_options
def command(
    asked: Asked,
    by: tuple[str, ...],
    idle_watts: float | None,
    clusters: tuple[str, ...],
    place: Place,
    form: Form,
) -> None:
    """GPU time that was held and made no training step, the most idle first.

    Runs of fleetctl tell it themselves. Of other jobs the epilogs of node checks tell the energy of each GPU; how few
    watts are idle depends on the model, so that --idle-watts has to be given. What nobody can tell is unknown.

    \b
    Example:
      fleetctl account idle --since 7d
      fleetctl account idle --by job,user --idle-watts 100 --json
    """
    from msgspec.structs import replace

    from fleetctl.accounting.idle import idle_of
    from fleetctl.accounting.read_idle import count_without_gpus, read_held
    from fleetctl.accounting.read_state import read_state
    from fleetctl.cli.account_print import print_rows

    with reading(place, clusters, asked) as (connection, about):
        assert about.window is not None, "a window was asked for"
        names = {cluster.id: cluster.name for cluster in about.clusters}
        as_of_s = {one.cluster: about.now_s if one.synced_s is None else one.synced_s for one in read_state(connection)}
        found = idle_of(read_held(connection, about.window, by, names, as_of_s), idle_watts)
        without = count_without_gpus(connection, about.window, about.cluster_ids)
    notes = about.notes
    if without:
        notes += (f"of {without} more records Slurm does not say whether they held GPUs",)
    if idle_watts is None and any(row.watts is not None for row in found):
        notes += ("energy was measured and decides nothing without --idle-watts",)
    rows = [_values(row, idle_watts) for row in found]
    is_measured = any(row.watts is not None for row in found)
    print_rows(_columns(by, is_measured=is_measured), rows, form, replace(about, notes=notes, definition=_DEFINITION))


def _columns(by: tuple[str, ...], *, is_measured: bool) -> tuple[Column, ...]:
    from fleetctl.accounting.idle import IDLE, Kind
    from fleetctl.cli.account_print import Column, Unit

    unshown = () if is_measured else (Kind.LOW_POWER,)
    return (
        *(Column(key, key.upper()) for key in by),
        Column("records", "", Unit.NUMBER),
        Column("gpu_seconds", "", Unit.NUMBER),
        Column("gpu_hours", "GPU-HOURS", Unit.HOURS),
        Column("idle_gpu_hours", "IDLE", Unit.HOURS),
        Column("idle_share", "OF KNOWN", Unit.SHARE),
        *(Column(f"{kind}_gpu_hours", "" if kind in unshown else _heading(kind), Unit.HOURS) for kind in IDLE),
        Column("unknown_gpu_hours", "UNKNOWN", Unit.HOURS),
        Column("mean_watts", "MEAN W" if is_measured else "", Unit.NUMBER),
    )


def _heading(kind: Kind) -> str:
    return kind.upper().replace("_", " ")


def _values(row: Idle, idle_watts: float | None) -> tuple[object, ...]:
    from fractions import Fraction

    from fleetctl.accounting.idle import IDLE, Kind

    def hours(gpu_ms: int | None) -> Fraction | None:
        return None if gpu_ms is None else Fraction(gpu_ms, 3_600_000)

    known = {kind: row.ms[kind] if row.known_ms else None for kind in IDLE}
    if idle_watts is None:
        known[Kind.LOW_POWER] = None
    return (
        *row.key,
        row.records,
        Fraction(row.held_ms, 1000),
        hours(row.held_ms),
        hours(row.idle_ms),
        None if row.idle_ms is None else row.idle_ms / row.known_ms,
        *(hours(known[kind]) for kind in IDLE),
        hours(row.ms[Kind.UNKNOWN]),
        None if row.watts is None else round(row.watts, 1),
    )

"""`fleetctl account usage`: GPU-hours held, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from fleetctl.accounting.usage import By, Exact
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
from fleetctl.cli.account_weights import units_by, weighed_cells, weighed_columns, weighed_total, weights_options

if TYPE_CHECKING:
    from fleetctl.accounting.usage import Keys, Usage, Weighed
    from fleetctl.cli.account_print import Column

_HOUR_S = 3600
_DEFINITION = (
    "gpu_seconds: GPUs that Slurm had given out, times the seconds within the window, suspended time included; open "
    "records count up to when the controller last confirmed them; equivalent_gpu_seconds: a MIG slice is its part of a "
    "GPU; a record in several rows counts in each"
)


@click.command("usage")
@window_options
@by_option([by.value for by in By], By.ACCOUNT)
@click.option("--billing", is_flag=True, help="Also the units that Slurm bills (TRESBillingWeights), times hours.")
@weights_options
@cluster_option
@database_options
@form_options
def command(
    asked: Asked,
    by: tuple[str, ...],
    billing: bool,
    weights: str | None,
    flag: str | None,
    clusters: tuple[str, ...],
    place: Place,
    form: Form,
) -> None:
    """GPU-hours held within a window, over all attempts of all jobs.

    Jobs are cut at the edges of the window, so that the windows next to each other add up. Records of which Slurm does
    not say how many GPUs they held, or that are open and were never seen running, are counted apart, not as zero.

    \b
    Example:
      fleetctl account usage
      fleetctl account usage --since last-month --until this-month --by account,user
      fleetctl account usage --since 30d --by day --csv
      fleetctl account usage --by partition --billing-weights CPU=1.0,Mem=0.25G,GRES/gpu=2.0
    """
    from msgspec.structs import replace

    from fleetctl.accounting.read_billing import read_billing
    from fleetctl.accounting.read_usage import read_usage
    from fleetctl.accounting.usage import by_key, total_of, weighed_by_key
    from fleetctl.cli.account_print import print_rows

    keys, units_of = [By(key) for key in by], units_by(weights, flag)
    billing |= units_of is not None
    weighed: dict[Keys, Weighed] | None = None
    with reading(place, clusters, asked) as (connection, about):
        assert about.window is not None, "a window was asked for"
        buckets = read_usage(connection, about.window, keys, about.cluster_ids, about.zone, billing=billing)
        if units_of is not None:
            parts = read_billing(connection, about.window, keys, about.cluster_ids, units_of, about.zone)
            weighed = weighed_by_key(parts, keys)
    usages = by_key(buckets, keys)
    total = (*_row((None,) * len(keys), total_of(usages), billing), *weighed_total(weighed))
    rows = [(*_row(one.keys, one, billing), *weighed_cells(weighed, one.keys)) for one in usages]
    columns = (*key_columns(keys), *_columns(billing), *weighed_columns(weighed))
    print_rows(columns, rows, form, replace(about, definition=_DEFINITION), total)


def key_columns(keys: Sequence[By]) -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column

    return tuple(Column(key.value, key.value.upper()) for key in keys)


def _columns(billing: bool) -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    return (
        Column("gpu_seconds", "", Unit.NUMBER),
        Column("gpu_hours", "GPU-HOURS", Unit.HOURS),
        Column("equivalent_gpu_seconds", "", Unit.NUMBER),
        Column("equivalent_gpu_hours", "EQUIVALENT", Unit.HOURS),
        Column("records", "RECORDS", Unit.NUMBER),
        Column("records_without_gpu_data", "NO GPU DATA", Unit.NUMBER),
        Column("records_without_end", "NO END", Unit.NUMBER),
        *((Column("billing_seconds", "", Unit.NUMBER),) if billing else ()),
        *((Column("billing_hours", "BILLING-HOURS", Unit.HOURS),) if billing else ()),
    )


def _row(keys: Keys, one: Usage, billing: bool) -> tuple[object, ...]:
    held = (one.gpu_seconds, hours_of(one.gpu_seconds), one.equivalents, hours_of(one.equivalents))
    billed = (one.billing_seconds, hours_of(one.billing_seconds)) if billing else ()
    return (*keys, *held, one.records, one.unknown_gpus, one.unknown_end, *billed)


def hours_of(seconds: Exact | None) -> Fraction | None:
    return None if seconds is None else Fraction(seconds, _HOUR_S)

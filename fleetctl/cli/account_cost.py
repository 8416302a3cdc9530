"""`fleetctl account cost`: what held GPUs cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.accounting.usage import By
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
    from fleetctl.accounting.money import Cost, Costs
    from fleetctl.cli.account_print import Column

_DEFINITION = (
    "amount: GPU-hours held within the window, each at the price that held then (`fleetctl account price ls`), rounded "
    "once to the cent, half to even; the total is rounded by itself; unpriced_gpu_seconds have no price and are in no "
    "amount"
)


@click.command("cost")
@window_options
@by_option([by.value for by in By], By.ACCOUNT)
@click.option("--currency", metavar="CODE", help="Only prices in this currency. [default: the one there is]")
@cluster_option
@database_options
@form_options
def command(
    asked: Asked, by: tuple[str, ...], currency: str | None, clusters: tuple[str, ...], place: Place, form: Form
) -> None:
    """What the GPUs held within a window cost, by the prices of `fleetctl account price`.

    Where a price changes within the window, each part of it has its own. GPU time without a price is shown as hours
    and in no sum. An answer is in one currency.

    \b
    Example:
      fleetctl account cost --since last-month --until this-month
      fleetctl account cost --by user,model --json
    """
    from msgspec.structs import replace

    from fleetctl.accounting.read_usage import read_costs
    from fleetctl.cli.account_print import print_rows
    from fleetctl.cli.account_usage import key_columns
    from fleetctl.errors import UsageError

    keys = [By(key) for key in by]
    with reading(place, clusters, asked) as (connection, about):
        assert about.window is not None, "a window was asked for"
        try:
            found = read_costs(connection, about.window, keys, about.cluster_ids, about.zone, currency)
        except ValueError as error:
            raise UsageError(str(error), remedy="--currency CODE picks one") from None
    about = replace(about, definition=_DEFINITION, notes=(*about.notes, *_not_in_it(found, currency)))
    rows = [_row(one.keys, one, found.currency) for one in found.rows]
    total = _row((None,) * len(keys), found.total, found.currency)
    print_rows((*key_columns(keys), *_columns()), rows, form, about, total)


def _not_in_it(found: Costs, currency: str | None) -> list[str]:
    total, words = found.total, []
    if hours := total.unpriced_gpu_seconds / 3600:
        priced = "" if currency is None else f" in {currency}"
        words.append(f"{float(hours):.2f} GPU-hours have no price{priced}: `fleetctl account price set`")
    if unknown := total.unknown_gpus + total.unknown_end:
        words.append(f"in no amount: records of which nobody knows the GPUs or the end, {unknown}")
    return words


def _columns() -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    return (
        Column("gpu_seconds", "", Unit.NUMBER),
        Column("gpu_hours", "GPU-HOURS", Unit.HOURS),
        Column("amount", "AMOUNT", Unit.MONEY),
        Column("currency", "CURRENCY"),
        Column("unpriced_gpu_seconds", "", Unit.NUMBER),
        Column("unpriced_gpu_hours", "UNPRICED GPU-HOURS", Unit.HOURS),
        Column("records_without_gpu_data", "NO GPU DATA", Unit.NUMBER),
        Column("records_without_end", "NO END", Unit.NUMBER),
    )


def _row(keys: tuple[str | None, ...], one: Cost, currency: str | None) -> tuple[object, ...]:
    from fleetctl.cli.account_usage import hours_of

    amount = None if one.amount is None else round(one.amount, 2)
    held = (one.gpu_seconds, hours_of(one.gpu_seconds))
    unknown = one.gpu_seconds is None
    unpriced = None if unknown else one.unpriced_gpu_seconds
    counts = (one.unknown_gpus, one.unknown_end)
    return (*keys, *held, amount, None if amount is None else currency, unpriced, hours_of(unpriced), *counts)

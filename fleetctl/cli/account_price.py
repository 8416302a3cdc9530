"""`fleetctl account price`: what a GPU-hour costs, and from when on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleetctl.cli.account_options import (
    Asked,
    Form,
    Place,
    cluster_option,
    database_options,
    form_options,
    opened,
    reading,
    utc_option,
    zone_of,
)
from fleetctl.cli.context import app
from fleetctl.cli.output import note

if TYPE_CHECKING:
    from fractions import Fraction

    from fleetctl.accounting.money import Price

Command = TypeVar("Command", bound=Callable[..., Any])

_LISTED = "`fleetctl account price ls`"


@click.group()
def command() -> None:
    """Prices of a GPU-hour, and from when they hold.

    A price holds until another one of the same scope begins. Of the prices that fit, one for a model counts before one
    for a partition, that one before one for a cluster, and that one before one for everything.

    \b
    Example:
      fleetctl account price set 2.45 --model h100 --from 2026-01-01
      fleetctl account price ls
    """


def _scope(command: Command) -> Command:
    """--from, --model, --partition, --cluster: which price is meant."""
    said = "Only on this cluster. [default: all]"
    command = click.option("--cluster", default="", metavar="NAME", help=said)(command)
    command = click.option("--partition", default="", metavar="NAME", help="Only there. [default: all]")(command)
    said = "Type of GPU, as Slurm says it. [default: all]"
    command = click.option("--model", default="", metavar="NAME", help=said)(command)
    start = "Moment from which it holds, such as 2026-01-01."
    return click.option("--from", "start", metavar="TIME", required=True, help=start)(command)


@command.command("set")
@click.argument("amount", metavar="PRICE")
@_scope
@click.option("--currency", default="USD", show_default=True, metavar="CODE", help="Three capital letters.")
@click.option("--note", "words", default="", metavar="TEXT", help="Why, or by whom.")
@utc_option
@database_options
def set_it(
    amount: str,
    start: str,
    model: str,
    partition: str,
    cluster: str,
    currency: str,
    words: str,
    asked: Asked,
    place: Place,
) -> None:
    """Set the price of one hour of one GPU from a moment on; 0 is for free.

    A price from a moment in the past changes what was asked for since then. It is done, and said.

    \b
    Example:
      fleetctl account price set 2.45 --model h100 --from 2026-01-01 --currency EUR
      fleetctl account price set 1.20 --partition preempt --from 2026-12
    """
    from fleetctl.accounting.framing import text_of
    from fleetctl.accounting.money import Price, read_amount, read_currency
    from fleetctl.accounting.prices import set_price
    from fleetctl.errors import UsageError

    try:
        per_hour, currency = read_amount(amount), read_currency(currency)
    except ValueError as error:
        raise UsageError(str(error)) from None
    cluster, partition, model = text_of(cluster), text_of(partition), text_of(model)
    price = Price(cluster, partition, model, _moment(start, asked), currency, per_hour, text_of(words))
    with opened(place, writing=True) as engine, engine.begin() as connection:
        before = set_price(connection, price, amount)
    if before is not None:
        note(f"in the place of {_words(before.per_gpu_hour)} {before.currency}")
    if price.since_s < app().clock.now().timestamp():
        note("it begins in the past: costs of that time are other ones now")


@command.command("ls")
@utc_option
@cluster_option
@database_options
@form_options
def list_them(asked: Asked, clusters: tuple[str, ...], place: Place, form: Form) -> None:
    """List all prices, and until when each holds.

    \b
    Example:
      fleetctl account price ls
      fleetctl account price ls --json
    """
    from msgspec.structs import replace

    from fleetctl.accounting.prices import read_prices
    from fleetctl.cli.account_print import Column, Unit, print_rows

    with reading(place, clusters, asked) as (connection, about):
        prices = [one for one in read_prices(connection) if one.cluster in ("", *about.cluster_names)]
    columns = (
        Column("from", "FROM", Unit.TIME),
        Column("until", "UNTIL", Unit.TIME),
        Column("cluster", "CLUSTER"),
        Column("partition", "PARTITION"),
        Column("model", "MODEL"),
        Column("per_gpu_hour", "PER GPU-HOUR"),
        Column("currency", "CURRENCY"),
        Column("note", "NOTE"),
    )
    print_rows(columns, [_row(one, prices) for one in prices], form, replace(about, window=None, notes=()))


@command.command("rm")
@_scope
@utc_option
@database_options
def remove(start: str, model: str, partition: str, cluster: str, asked: Asked, place: Place) -> None:
    """Remove the price of this scope that begins at this very moment.

    \b
    Example:
      fleetctl account price rm --model h100 --from 2026-01-01
    """
    from fleetctl.accounting.framing import text_of
    from fleetctl.accounting.prices import read_prices, remove_price
    from fleetctl.errors import UsageError

    scope = (text_of(cluster), text_of(partition), text_of(model))
    wanted = (scope, _moment(start, asked))
    with opened(place, writing=True) as engine, engine.begin() as connection:
        found = [one for one in read_prices(connection) if (one.scope, one.since_s) == wanted]
        if not found:
            raise UsageError("there is no such price", remedy=f"{_LISTED} shows all")
        remove_price(connection, found[0])


def _moment(text: str, asked: Asked) -> int:
    from fleetctl.cli.account_time import moment
    from fleetctl.errors import UsageError

    try:
        return moment(text, zone_of(asked), app().clock.now())
    except ValueError as error:
        raise UsageError(f"--from {text}: expected {error}") from None


def _row(price: Price, prices: list[Price]) -> tuple[object, ...]:
    """None stands for: any, for ever."""
    later = [one.since_s for one in prices if one.scope == price.scope and one.since_s > price.since_s]
    scope = (part or None for part in price.scope)
    amount = _words(price.per_gpu_hour)
    return (price.since_s, min(later, default=None), *scope, amount, price.currency, price.note or None)


def _words(amount: Fraction) -> str:
    """As it was written, since every price is a decimal number."""
    from decimal import Decimal

    return format((Decimal(amount.numerator) / amount.denominator).normalize(), "f")

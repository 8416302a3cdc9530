"""The table of prices."""

from __future__ import annotations

from fractions import Fraction

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from fleetctl.accounting.money import Price
from fleetctl.accounting.tables import prices


def read_prices(connection: Connection) -> tuple[Price, ...]:
    """All of them, by scope and time: whatever its currency, a price ends the one before it."""
    table = prices.c
    scope = (table.cluster, table.partition, table.gpu_model, table.since_s)
    query = select(*scope, table.currency, table.per_gpu_hour, table.note).order_by(*scope)
    return tuple(
        Price(cluster, partition, model, since_s, coin, Fraction(amount), note)
        for cluster, partition, model, since_s, coin, amount, note in connection.execute(query)
    )


def set_price(connection: Connection, price: Price, written: str) -> Price | None:
    """Add a price, or put it in the place of that of the same scope and moment, which is returned.

    :param written: the amount as it was written: a decimal number.
    """
    before = next((one for one in read_prices(connection) if _same(one, price)), None)
    values = {"currency": price.currency, "per_gpu_hour": written, "note": price.note}
    if before is not None:
        connection.execute(update(prices).where(_is(price)).values(values))
        return before
    free = connection.execute(select(func.coalesce(func.max(prices.c.id), 0) + 1)).scalar_one()
    named = dict(zip(("cluster", "partition", "gpu_model"), price.scope, strict=True))
    connection.execute(insert(prices).values(id=free, since_s=price.since_s, **named, **values))
    return None


def remove_price(connection: Connection, price: Price) -> None:
    connection.execute(delete(prices).where(_is(price)))


def _same(one: Price, other: Price) -> bool:
    return (one.scope, one.since_s) == (other.scope, other.since_s)


def _is(price: Price) -> ColumnElement[bool]:
    table = prices.c
    cluster, partition, model = price.scope
    scope = and_(table.cluster == cluster, table.partition == partition, table.gpu_model == model)
    return and_(scope, table.since_s == price.since_s)

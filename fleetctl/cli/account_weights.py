"""`--billing-weights`: what records would have been billed by weights that are not in slurm.conf yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleetctl.errors import UsageError

if TYPE_CHECKING:
    from fleetctl.accounting.tres import Tres
    from fleetctl.accounting.usage import Keys, Weighed
    from fleetctl.cli.account_print import Column

Command = TypeVar("Command", bound=Callable[..., Any])
UnitsOf = Callable[["Tres"], Fraction | None]

_FORM = "--billing-weights CPU=1.0,Mem=0.25G,Node=1,GRES/gpu=2.0,GRES/gpu:h100=4.0"
_HOUR_S = 3600


def weights_options(command: Command) -> Command:
    """--billing-weights and --billing-flags; the function takes `weights: str | None` and `flag: str | None`."""
    flags = "How the weights are put together (PriorityFlags). [default: added up]"
    flag = click.Choice(["MAX_TRES", "MAX_TRES_GRES"], case_sensitive=False)
    command = click.option("--billing-flags", "flag", type=flag, help=flags)(command)
    said = "Also what these TRESBillingWeights would have billed, such as CPU=1.0,Mem=0.25G,GRES/gpu=2.0."
    return click.option("--billing-weights", "weights", metavar="WEIGHTS", help=said)(command)


def units_by(weights: str | None, flag: str | None) -> UnitsOf | None:
    """What is billed for a record; None: no weights were given.

    :raises UsageError: weights that cannot be read or that records cannot answer, or a flag without weights.
    """
    from fleetctl.accounting.tres import check_weights, parse_weights, units_of

    if weights is None:
        if flag is None:
            return None
        raise UsageError("--billing-flags says how weights are put together, and there are none", remedy=_FORM)
    try:
        read = parse_weights("".join(weights.split()))
        check_weights(read)
    except ValueError as error:
        raise UsageError(f"--billing-weights: {error}", remedy=_FORM) from None
    return partial(units_of, weights=read, flags=() if flag is None else (flag,))


def weighed_columns(weighed: Mapping[Keys, Weighed] | None) -> tuple[Column, ...]:
    """None, here and below: no weights were given, and there is nothing to show."""
    from fleetctl.cli.account_print import Column, Unit

    if weighed is None:
        return ()
    return (
        Column("billing_weighted_seconds", "", Unit.NUMBER),
        Column("billing_weighted_hours", "WEIGHTED-HOURS", Unit.HOURS),
        Column("records_without_resources", "NO RESOURCES", Unit.NUMBER),
    )


def weighed_cells(weighed: Mapping[Keys, Weighed] | None, keys: Keys) -> tuple[object, ...]:
    from fleetctl.accounting.usage import Weighed

    return () if weighed is None else _cells(weighed.get(keys, Weighed(None)))


def weighed_total(weighed: Mapping[Keys, Weighed] | None) -> tuple[object, ...]:
    from fleetctl.accounting.usage import weighed_in_all

    return () if weighed is None else _cells(weighed_in_all(weighed.values()))


def _cells(one: Weighed) -> tuple[object, ...]:
    return (one.seconds, None if one.seconds is None else Fraction(one.seconds, _HOUR_S), one.unknown)

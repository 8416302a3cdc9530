"""Which daemon is meant: options that the commands of `fleetctl daemon` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from fleetctl.cli.account_options import database_options
from fleetctl.cli.context import App, app
from fleetctl.cli.runs import cluster_of, slurm_of, user_name
from fleetctl.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from fleetctl.recovery.lease import Place

Command = TypeVar("Command", bound=Callable[..., Any])

OPERATOR = "operator"


class Which(Struct, frozen=True):
    """Whose daemon, and on which cluster; None: the only one that the database knows."""

    operator: bool
    cluster: str | None


def scope_of(which: Which) -> str:
    """As the journal keeps them apart."""
    return OPERATOR if which.operator else f"user {user_name()}"


def which_options(command: Command) -> Command:
    """--operator, --cluster, --database, --on-network-disk; takes `which: Which` and `place: account_options.Place`."""
    import functools

    @functools.wraps(command)
    def collected(*args: Any, operator: bool, cluster: str | None, **values: Any) -> Any:
        return command(*args, **values, which=Which(operator, cluster))

    said = "The cluster. [default: the only one in the database]"
    made = click.option("--cluster", metavar="NAME", help=said)(collected)
    made = click.option("--operator", is_flag=True, help="The cluster's daemon, not that of your own runs.")(made)
    return database_options(made)  # type: ignore[return-value]  # the decorators of click name the options


def place_of(engine: Engine, which: Which, *, asks: bool = False) -> Place:
    """The daemon that is meant. `asks`: where the database knows none yet, Slurm says which cluster this is.

    :raises UsageError: there is none, or there are several.
    """
    from fleetctl.recovery.lease import Place
    from fleetctl.recovery.recall import places

    scope = scope_of(which)
    if which.cluster is not None:
        return Place(which.cluster, scope)
    found = [
        Place(cluster, scope) for cluster in sorted({p.cluster for p in places(engine) if p.acting.scope == scope})
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(place.cluster for place in found)
        raise UsageError(f"there are daemons on {names}", remedy="--cluster NAME says which")
    if asks:
        return Place(cluster_of(slurm_of(app())), scope)
    others = sorted({place.acting.scope for place in places(engine)})
    known = f"it knows those of {', '.join(others)}" if others else "none has run with it"
    raise UsageError(
        f"this database knows no daemon of {scope}: {known}", remedy="`fleetctl daemon run`, or --operator"
    )


def key_of(here: App, run: str, which: Which) -> str:
    """The whole id of a run that may be named by the start of it; an operator's runs lie in no run root of ours.

    :raises RunUnknown: none, or several.
    """
    from fleetctl.cli.runs import store_of

    name, slash, task = run.partition("/")
    if which.operator:
        return run
    return store_of(here).find(name).run_id + slash + task

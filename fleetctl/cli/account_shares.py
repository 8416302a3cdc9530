"""`fleetctl account shares`: fair share, and what was used of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.cli.account_options import Asked, Form, Place, database_options, form_options, reading, utc_option
from fleetctl.cli.context import app
from fleetctl.cli.output import note
from fleetctl.units import Duration

if TYPE_CHECKING:
    from fleetctl.accounting.shares import Standing
    from fleetctl.cli.account_print import Column

_DEFINITION = (
    "used_share: of an account its part of all GPU-seconds, of a user the part of those of the account, each second "
    "weighed by 2^(-age/half-life), accounts below not added; effective_priority: base x norm_shares / (used_share + "
    "0.01); norm_shares and what stands beside it are those of sshare"
)


def _half_life(ctx: click.Context, param: click.Parameter, value: str) -> Duration:
    try:
        found = Duration.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}", ctx, param) from None
    if not found.seconds:
        raise click.BadParameter("expected more than no time", ctx, param)
    return found


@click.command("shares")
@click.option(
    "--half-life",
    callback=_half_life,
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="How fast usage is forgotten (PriorityDecayHalfLife).",
)
@click.option("--base", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Priority to scale.")
@utc_option
@database_options
@form_options
def command(half_life: Duration, base: float, asked: Asked, place: Place, form: Form) -> None:
    """What accounts and users were promised, what they used, and what that makes of their priority.

    Shares are those that sshare shows now, of the cluster that the environment points to. Usage is ours, of GPUs alone.

    \b
    Example:
      fleetctl account shares
      fleetctl account shares --half-life 14d --json
    """
    from msgspec.structs import replace

    from fleetctl.accounting.model import Window
    from fleetctl.accounting.read_usage import read_held
    from fleetctl.accounting.shares import HALF_LIVES, decayed, standings
    from fleetctl.accounting.usage import By
    from fleetctl.cli.account_print import print_rows
    from fleetctl.slurm.connect import connect_books

    edges = app()
    books = connect_books(edges.environ, edges.clock, note if edges.debug else None)
    shares = books.shares()
    now_s = int(edges.clock.now().timestamp())
    window = Window(now_s - HALF_LIVES * half_life.seconds, now_s)
    with reading(place, (books.cluster(),), asked, window) as (connection, about):
        held = read_held(connection, window, (By.ACCOUNT, By.USER), about.cluster_ids)
        used = decayed(held, now_s, half_life.seconds)
    notes = about.notes
    if unknown := sum(used.unknown.values()):
        notes += (f"in no sum: records of which nobody knows the GPUs or the end, {unknown}",)
    rows = [_row(one) for one in standings(shares, used, base)]
    print_rows(_columns(), rows, form, replace(about, window=None, notes=notes, definition=_DEFINITION))


def _columns() -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    return (
        Column("account", "ACCOUNT"),
        Column("user", "USER"),
        Column("raw_shares", "SHARES", Unit.NUMBER),
        Column("norm_shares", "PROMISED", Unit.SHARE),
        Column("used_share", "USED", Unit.SHARE),
        Column("decayed_gpu_seconds", "", Unit.NUMBER),
        Column("decayed_gpu_hours", "DECAYED GPU-HOURS", Unit.HOURS),
        Column("effective_priority", "EFFECTIVE PRIORITY", Unit.NUMBER),
        Column("raw_usage", "", Unit.NUMBER),
        Column("effective_usage", "SLURM'S USE", Unit.SHARE),
        Column("fair_share", "FAIR SHARE", Unit.NUMBER),
        Column("level_fs", "LEVEL FS", Unit.NUMBER),
    )


def _row(one: Standing) -> tuple[object, ...]:
    share = one.share
    priority = None if one.effective_priority is None else round(one.effective_priority, 6)
    seconds = one.decayed_gpu_seconds
    ours = (one.used_share, *((None, None) if seconds is None else (round(seconds, 3), seconds / 3600)), priority)
    slurms = (share.raw_usage, share.effective_usage, share.fair_share, share.level_fs)
    return (share.account, share.user or None, share.raw_shares, share.norm_shares, *ours, *slurms)

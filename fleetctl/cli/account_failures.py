"""`fleetctl account failures`: what interrupts jobs, how often, and on which nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    from fractions import Fraction

    from sqlalchemy.engine import Connection

    from fleetctl.accounting.failure_rates import Row
    from fleetctl.accounting.failures import Interruption
    from fleetctl.accounting.read_exposure import Exposures
    from fleetctl.accounting.read_failures import Known
    from fleetctl.cli.account_print import About, Column

_BY = ("cause", "node", "rack", "day", "user", "account", "partition", "cluster")
_OF_NODES = ("node", "rack")
_DEFINITION = (
    "an interruption is a record that held GPUs and ended otherwise than well, or an attempt of a run that ended "
    "within its record; a failure is one that nobody decided: cancels, preemptions, requeues and time limits are none, "
    "nor is a step that failed in a job that completed; "
    "rates are over the GPU time held in the window; limits are exact Poisson limits of 95 %"
)
_HOUR_S = 3_600


def _rack(ctx: click.Context, param: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    if value is None:
        return None
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"expected a regular expression: {error}", ctx, param) from None
    if pattern.groups != 1:
        raise click.BadParameter("expected one group, which is the rack: '(r[0-9]+)n[0-9]+'", ctx, param)
    return pattern


@click.command("failures")
@window_options
@by_option(_BY, "cause", most=1)
@click.option("--rack", callback=_rack, metavar="REGEX", help="Finds the rack in a node's name: '(r[0-9]+)n[0-9]+'.")
@click.option("--gpus", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="GPUs of a job.")
@click.option("--all", "everything", is_flag=True, help="Also rows without any interruption.")
@cluster_option
@database_options
@form_options
def command(
    asked: Asked,
    by: tuple[str, ...],
    rack: re.Pattern[str] | None,
    gpus: int,
    everything: bool,
    clusters: tuple[str, ...],
    place: Place,
    form: Form,
) -> None:
    """What interrupted jobs that held GPUs, how often it fails, and how sure that is.

    MTBF is the mean time between the failures of a job on --gpus GPUs, with its 95 % limits: little exposure shows in
    limits that are wide. WITHOUT is how much longer it were if this cause were gone. By node, CHANCE is how likely so
    many failures are on a node that is like all others.

    \b
    Example:
      fleetctl account failures --since 30d --gpus 1024
      fleetctl account failures --by node --since 2026-11
      fleetctl account failures --by rack --rack '^(r[0-9]+)' --json
    """
    from msgspec.structs import replace

    from fleetctl.accounting.read_failures import read_interruptions
    from fleetctl.cli.account_print import print_rows
    from fleetctl.errors import UsageError

    if (by[0] == "rack") != (rack is not None):
        raise UsageError("--by rack and --rack go together", remedy="--by rack --rack '^(r[0-9]+)'")
    with reading(place, clusters, asked) as (connection, about):
        assert about.window is not None, "a window was asked for"
        names = {cluster.id: cluster.name for cluster in about.clusters}
        known = read_interruptions(connection, about.window, names)
        rows, total = _rows(connection, about, by[0], rack, known, gpus)
    shown = rows if everything else [row for row in rows if row.interruptions]
    notes = (*about.notes, *_notes(known, total, rows, by[0], len(rows) - len(shown)))
    definition = f"{_DEFINITION}; MTBF in hours of a job on {gpus} GPU{'s' if gpus > 1 else ''}"
    values = [_values(row, by[0]) for row in shown]
    print_rows(_columns(by[0]), values, form, replace(about, notes=notes, definition=definition))


def _rows(
    connection: Connection, about: About, by: str, rack: re.Pattern[str] | None, known: Known, gpus: int
) -> tuple[tuple[Row, ...], Fraction]:
    from fleetctl.accounting.failure_rates import of_nodes, table, with_chances
    from fleetctl.accounting.read_exposure import read_total

    assert about.window is not None, "a window was asked for"
    total = read_total(connection, about.window, about.cluster_ids)
    found = known.merged.interruptions
    key = _key(by, about, rack)
    exposures = _exposures(connection, about, by, rack)
    if by == "cause":
        exposures = dict.fromkeys({key(one) for one in found}, total)
    rows = table(of_nodes(found) if by in _OF_NODES else found, exposures, total, key, gpus)
    return (with_chances(rows) if by in _OF_NODES else rows), total


def _key(by: str, about: About, rack: re.Pattern[str] | None) -> Callable[[Interruption], str | None]:
    if by in _OF_NODES:
        return lambda one: _node(one.job[0], one.node, about, rack)
    if by == "day":
        from bisect import bisect_right

        starts, labels = _days(about)
        return lambda one: labels[bisect_right(starts, one.at_s) - 1]
    if by == "cause":
        return lambda one: one.cause.value
    if by == "cluster":
        return lambda one: one.job[0]
    return lambda one: getattr(one, by) or None


def _node(cluster: str, node: str, about: About, rack: re.Pattern[str] | None) -> str | None:
    """The name of a row; of several clusters two may have nodes or racks of one name."""
    if rack is not None:
        match = rack.search(node)
        node = match[1] or "" if match else ""
    if not node:
        return None
    return f"{cluster}/{node}" if len(about.clusters) > 1 else node


def _exposures(connection: Connection, about: About, by: str, rack: re.Pattern[str] | None) -> Exposures:
    from fleetctl.accounting.model import Window
    from fleetctl.accounting.read_exposure import read_exposures, read_nodes, read_total

    assert about.window is not None, "a window was asked for"
    if by == "cause":
        return {}
    if by in _OF_NODES:
        names = {cluster.id: cluster.name for cluster in about.clusters}
        return read_nodes(
            connection, about.window, about.cluster_ids, lambda cluster, node: _node(names[cluster], node, about, rack)
        )
    if by != "day":
        return read_exposures(connection, about.window, by, about.cluster_ids)
    starts, labels = _days(about)
    ends = (*starts[1:], about.window.until_s)
    days = [Window(max(start, about.window.since_s), end) for start, end in zip(starts, ends, strict=True)]
    return {label: read_total(connection, day, about.cluster_ids) for label, day in zip(labels, days, strict=True)}


def _days(about: About) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The first moments of the days that the window touches, and how they are called."""
    from fleetctl.accounting.usage import By, calendar

    assert about.window is not None, "a window was asked for"
    days = calendar(about.window, about.zone, (By.DAY,))
    return days.starts[:-1], days.names


def _columns(by: str) -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    own = {
        "cause": (Column("without_gain", "WITHOUT", Unit.SHARE), Column("without_mtbf_hours", "", Unit.HOURS)),
        "node": (Column("chance", "CHANCE", Unit.NUMBER), Column("repeats", "", Unit.NUMBER)),
    }
    own["rack"] = own["node"]
    return (
        Column(by, by.upper(), Unit.ID),
        Column("interruptions", "STOPS", Unit.NUMBER),
        Column("failures", "FAILURES", Unit.NUMBER),
        Column("share", "", Unit.SHARE),
        Column("gpu_seconds", "", Unit.NUMBER),
        Column("per_1000_gpu_days", "PER 1000 GPU-D", Unit.HOURS),
        Column("mtbf_hours", "MTBF H", Unit.HOURS),
        Column("mtbf_low_hours", "LOW", Unit.HOURS),
        Column("mtbf_high_hours", "HIGH", Unit.HOURS),
        *own.get(by, ()),
        Column("persons", "", Unit.NUMBER),
        Column("of_runs", "", Unit.NUMBER),
    )


def _values(row: Row, by: str) -> tuple[object, ...]:
    own: dict[str, tuple[object, ...]] = {
        "cause": (row.without.gain, row.without.mtbf),
        "node": (None if row.chance is None else float(f"{row.chance:.3g}"), row.repeats),
    }
    own["rack"] = own["node"]
    return (
        row.key,
        row.interruptions,
        row.failures,
        row.share,
        row.gpu_seconds,
        row.per_1000_gpu_days,
        row.mtbf.value,
        row.mtbf.low,
        row.mtbf.high,
        *own.get(by, ()),
        row.persons,
        row.of_runs,
    )


def _notes(known: Known, total: Fraction, rows: Sequence[Row], by: str, left_out: int) -> tuple[str, ...]:
    from fleetctl.accounting.failure_rates import of_nodes
    from fleetctl.reliability import rates

    found = known.merged.interruptions
    failures = sum(one.failed for one in found)
    hours = float(total) / _HOUR_S
    notes = [f"{len(found)} interruptions, {failures} of them failures, in {hours:.2f} GPU-hours held"]
    if total and failures:
        limits = rates.mtbf(hours, failures)
        notes[0] += f": one failure in {limits.value:.2f} GPU-hours ({limits.low:.2f} to {limits.high:.2f})"
    asked = [one for one in found if one.by_person is not None]
    if asked:
        persons = sum(one.by_person is True for one in asked)
        notes.append(f"{persons} of {len(asked)} interruptions of runs ({persons / len(asked):.1%}) needed a person")
    if by in _OF_NODES:
        notes += _node_notes(rows, failures - len(of_nodes(found)), by)
    if known.without_gpus:
        notes.append(f"{known.without_gpus} more records ended badly, and Slurm does not say whether they held GPUs")
    if known.merged.unplaced:
        notes.append(f"{known.merged.unplaced} interruptions of runs have no record that held GPUs: not counted")
    if left_out:
        notes.append(f"{left_out} more without any: --all")
    return tuple(notes)


def _node_notes(rows: Sequence[Row], others: int, by: str) -> list[str]:
    from fleetctl.accounting.failure_rates import DOUBTFUL, REPEATED

    notes = [f"{others} failures are no node's: a program's own, or its memory"] if others else []
    several = [row for row in rows if row.key is not None and row.failures >= REPEATED]
    if several:
        count = sum(row.key is not None for row in rows)
        bad = [str(row.key) for row in several if row.repeats]
        told = f"more than chance: {', '.join(bad)}" if bad else "no more than chance"
        notes.append(
            f"{len(several)} of {count} {by}s failed {REPEATED} times or more, {told} (some of {count} are always "
            f"unlucky, so only a chance below {DOUBTFUL} / {count} is taken for a sign)"
        )
    return notes

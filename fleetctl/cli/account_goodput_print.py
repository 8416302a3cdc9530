"""How `fleetctl account goodput` prints ledgers: one run in full, many runs, sums, causes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, tzinfo
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from fleetctl.accounting.ledger import DEFINITIONS, ETTR
from fleetctl.accounting.model import Window
from fleetctl.accounting.spans import Spent
from fleetctl.cli.account_options import Form
from fleetctl.cli.account_print import About, Column, Unit, cell_of, head_line, json_value, print_rows
from fleetctl.cli.account_time import iso
from fleetctl.cli.output import note, one_line, print_fields, print_table
from fleetctl.rundir.model import attempt_name

if TYPE_CHECKING:
    from fleetctl.accounting.goodput import CauseTotal, Goodput, Interruption, Total
    from fleetctl.accounting.ledger import WallLedger
    from fleetctl.accounting.ledger_gpu import GpuLedger

_HOUR_MS = 3_600_000
_OF_WALL = tuple(spent for spent in Spent if spent is not Spent.SPARE)
_OF_GPUS = tuple(spent for spent in Spent if spent not in (Spent.QUEUE, Spent.REQUEUE))  # no GPU is held while it waits
# Classes of which JSON and CSV tell the share
_SHOWN = (Spent.QUEUE, Spent.STARTUP, Spent.STALL, Spent.LOST, Spent.HANG, Spent.REQUEUE, Spent.UNTOLD)
_SHOWN_GPUS = (Spent.STARTUP, Spent.STALL, Spent.LOST, Spent.HANG, Spent.SPARE, Spent.UNTOLD)


def about_of(about: About, window: Window | None, form: Form) -> About:
    """JSON says what every class means; elsewhere that stands beside the ledger of one run."""
    words = {"ettr": ETTR, "gpu_productive": "of the GPU time that all records held, the part that is productive"}
    if form is Form.JSON:
        words |= {spent.value: means for spent, means in DEFINITIONS.items()}
    return replace(about, window=window, definition="; ".join(f"{key}: {means}" for key, means in words.items()))


def print_run(run: Goodput, about: About) -> None:
    """In full, as a table of classes and one of interruptions."""
    note(head_line(about))
    print_fields(_fields(run))
    click.echo()
    print_table(("CLASS", "HOURS", "SHARE", "GPU HOURS", "SHARE", "WHAT"), _class_rows(run), folds=("WHAT",))
    if run.interruptions:
        click.echo()
        rows = [_interruption_row(one, about.zone) for one in run.interruptions]
        print_table(("ATTEMPT", "AT", "CAUSE", "D", "R", "W", "GPU HOURS LOST", "PERSON"), rows, folds=("CAUSE",))
        note("D: last step until the end was seen; R: from there to the next first step; W: work that it took")
    for line in (about.definition or "", *about.notes):
        note(one_line(line))


def _class_rows(run: Goodput) -> list[tuple[str, ...]]:
    rows = []
    gpus = run.gpus if run.gpus.held_ms else None
    for spent in Spent:
        wall = ("", "")
        if spent in _OF_WALL:
            wall = _cell(_hours(run.wall.known_ms(spent)), Unit.HOURS), _cell(_share(run.wall, spent), Unit.SHARE)
        held = ("", "")
        if spent in _OF_GPUS and gpus is not None:
            held = _cell(_hours(gpus.known_ms(spent)), Unit.HOURS), _cell(_share(gpus, spent), Unit.SHARE)
        rows.append((spent.value, *wall, *held, DEFINITIONS[spent]))
    held_sum = None if gpus is None else _hours(gpus.held_ms)
    return [*rows, ("sum", _cell(_hours(run.wall.wall_ms), Unit.HOURS), "", _cell(held_sum, Unit.HOURS), "", "")]


def _fields(run: Goodput) -> list[tuple[str, str]]:
    wall = run.wall
    said = [word for word, is_so in (("provisional", wall.provisional), ("estimated", wall.estimated)) if is_so]
    fields = [
        ("run", run.run_id),
        ("name", run.name),
        ("user", run.user),
        ("ETTR", f"{_cell(wall.ettr, Unit.SHARE)} of wall time" + (f" ({', '.join(said)})" if said else "")),
        ("productive", f"{_cell(run.gpus.productive, Unit.SHARE)} of held GPU time"),
    ]
    if wall.unsaved_ms is not None:
        fields.append(("at risk", f"{_cell(_seconds(wall.unsaved_ms), Unit.SECONDS)} since the newest checkpoint"))
    if wall.silent_ms is not None:
        fields.append(
            ("last step", f"told {_cell(_seconds(wall.silent_ms), Unit.SECONDS)} before it was last seen alive")
        )
    if run.gpus.unknown_records:
        fields.append(("not known", _unknown(run.gpus.unknown_records)))
    return fields


def _unknown(records: int) -> str:
    return f"how many GPUs {records} record{'s' if records > 1 else ''} held, or until when"


def _interruption_row(one: Interruption, zone: tzinfo) -> tuple[str, ...]:
    cost, task = one.cost, "" if one.task < 0 else f"{one.task}/"
    gpu_ms = one.gpu.lost_ms if one.gpu is not None and cost.lost_ms is not None else None
    return (
        f"{task}{attempt_name(cost.number)}",
        cell_of(cost.at_ms // 1000, Unit.TIME, zone),
        cost.cause or "-",
        *(_cell(_seconds(part), Unit.SECONDS) for part in (cost.detection_ms, cost.restart_ms, cost.lost_ms)),
        _cell(_hours(gpu_ms), Unit.HOURS),
        "-" if cost.by_person is None else "yes" if cost.by_person else "no",
    )


def print_runs(found: Sequence[Goodput], form: Form, about: About) -> None:
    """A table has what fits a terminal; JSON and CSV have all."""
    notes = about.notes
    if going_on := sum(run.wall.provisional for run in found):
        notes += (f"{going_on} of these runs go on, or nobody knows their end: what is said of them is provisional",)
    if form is not Form.TABLE:
        print_rows(_run_columns(form), [_run_row(run, form) for run in found], form, replace(about, notes=notes))
        return
    if unknown := sum(run.gpus.unknown_records for run in found):
        notes += (f"not known, and in no sum: {_unknown(unknown)}",)
    columns = (
        Column("run_id", "RUN"),
        Column("user", "USER"),
        Column("ettr", "ETTR", Unit.SHARE),
        Column("wall_hours", "HOURS", Unit.HOURS),
        Column("gpu_hours", "GPU HOURS", Unit.HOURS),
        Column("rest", "REST MOSTLY"),
        Column("interrupted", "STOPS", Unit.NUMBER),
    )
    rows = [
        (
            *(run.run_id, run.user, run.wall.ettr, _hours(run.wall.wall_ms), _held_hours(run.gpus)),
            *(_rest(run.wall), len(run.interruptions)),
        )
        for run in found
    ]
    print_rows(columns, rows, form, replace(about, notes=notes))


def _rest(ledger: WallLedger | GpuLedger) -> str | None:
    """What took most of the time that is not productive, like `requeue 12.1%`; None: there is none, or nobody tells."""
    shares = {spent: share for spent in Spent if spent is not Spent.PRODUCTIVE and (share := _share(ledger, spent))}
    most = max(shares, key=shares.__getitem__, default=None)
    return None if most is None else f"{most} {_cell(shares[most], Unit.SHARE)}"


def _run_columns(form: Form) -> tuple[Column, ...]:
    """Of JSON and CSV."""
    return (
        *(Column(key, "") for key in ("run_id", "name", "user", "cluster")),
        *(Column(key, "", Unit.WORDS) for key in ("accounts", "partitions")),
        *(Column(key, "", Unit.NUMBER) for key in ("tasks", "ettr", "provisional", "estimated")),
        *(Column(key, "", Unit.NUMBER) for key in ("unsaved_s", "silent_s", "wall_s", "wall_hours")),
        *(Column(f"{spent}_s", "", Unit.NUMBER) for spent in _OF_WALL),
        *(Column(f"{spent}_share", "", Unit.SHARE) for spent in _SHOWN),
        *_gpu_columns(()),
        Column("interrupted", "", Unit.NUMBER),
        *((Column("interruptions", "", Unit.TEXT),) if form is Form.JSON else ()),
    )


def _run_row(run: Goodput, form: Form) -> tuple[object, ...]:
    wall = run.wall
    return (
        *(run.run_id, run.name, run.user, run.cluster, run.accounts, run.partitions, run.tasks),
        *(_rounded(wall.ettr), wall.provisional, wall.estimated),
        *(_seconds(wall.unsaved_ms), _seconds(wall.silent_ms)),
        *(_seconds(wall.wall_ms), _hours(wall.wall_ms)),
        *(_seconds(wall.known_ms(spent)) for spent in _OF_WALL),
        *(_share(wall, spent) for spent in _SHOWN),
        *_gpu_values(run.gpus, ()),
        len(run.interruptions),
        *(([_interruption_value(one) for one in run.interruptions],) if form is Form.JSON else ()),
    )


def _interruption_value(one: Interruption) -> dict[str, Any]:
    cost, gpu = one.cost, one.gpu
    return {
        "task": None if one.task < 0 else one.task,
        "attempt": attempt_name(cost.number),
        "at": iso(cost.at_ms // 1000),
        "cause": cost.cause or None,
        "by_person": cost.by_person,
        "detection_s": _number(cost.detection_ms),
        "restart_s": _number(cost.restart_ms),
        "lost_s": _number(cost.lost_ms),
        "detection_gpu_seconds": _number(gpu.detection_ms if gpu and cost.detection_ms is not None else None),
        "lost_gpu_seconds": _number(gpu.lost_ms if gpu and cost.lost_ms is not None else None),
    }


def print_totals(by: str, found: Sequence[Total], form: Form, about: About) -> None:
    head = (Column(by, by.upper()), Column("runs", "RUNS", Unit.NUMBER))
    if form is not Form.TABLE:
        columns = (*head, *_gpu_columns(_SHOWN_GPUS))
        print_rows(columns, [(one.key, one.runs, *_gpu_values(one.gpus, _SHOWN_GPUS)) for one in found], form, about)
        return
    columns = (
        *head,
        Column("gpu_hours", "GPU HOURS", Unit.HOURS),
        Column("gpu_productive", "PRODUCTIVE", Unit.SHARE),
        Column("rest", "REST MOSTLY"),
        Column("unknown_gpu_records", "NO GPU DATA", Unit.NUMBER),
    )
    rows = [
        (
            *(one.key, one.runs, _held_hours(one.gpus), one.gpus.productive),
            *(_rest(one.gpus), one.gpus.unknown_records),
        )
        for one in found
    ]
    print_rows(columns, rows, form, about)


def _gpu_columns(shares: Collection[Spent]) -> tuple[Column, ...]:
    """Of JSON and CSV."""
    return (
        Column("gpu_seconds", "", Unit.NUMBER),
        Column("gpu_hours", "", Unit.HOURS),
        Column("gpu_productive", "", Unit.SHARE),
        *(Column(f"gpu_{spent}_s", "", Unit.NUMBER) for spent in _OF_GPUS),
        *(Column(f"gpu_{spent}_share", "", Unit.SHARE) for spent in shares),
        Column("unknown_gpu_records", "", Unit.NUMBER),
    )


def _gpu_values(gpus: GpuLedger, shares: Collection[Spent]) -> tuple[object, ...]:
    return (
        *(_seconds(_held_ms(gpus)), _held_hours(gpus), _rounded(gpus.productive)),
        *(_seconds(gpus.known_ms(spent)) for spent in _OF_GPUS),
        *(_share(gpus, spent) for spent in shares),
        gpus.unknown_records,
    )


def _held_ms(gpus: GpuLedger) -> int | None:
    """All that is held may be of unknown GPUs: then nothing is known, and not 0."""
    return gpus.held_ms if gpus.held_ms > 0 or not gpus.unknown_records else None


def _held_hours(gpus: GpuLedger) -> Fraction | None:
    return _hours(_held_ms(gpus))


def print_causes(found: Sequence[CauseTotal], form: Form, about: About) -> None:
    columns = (
        Column("cause", "CAUSE"),
        Column("interruptions", "INTERRUPTIONS", Unit.NUMBER),
        Column("by_person", "BY PERSON", Unit.NUMBER),
        Column("detection_s", "D", Unit.SECONDS),
        Column("restart_s", "R", Unit.SECONDS),
        Column("lost_s", "W", Unit.SECONDS),
        Column("detection_gpu_seconds", "", Unit.NUMBER),
        Column("lost_gpu_seconds", "", Unit.NUMBER),
        Column("detection_gpu_hours", "GPU HOURS D", Unit.HOURS),
        Column("lost_gpu_hours", "GPU HOURS W", Unit.HOURS),
    )
    rows = [
        (
            *(one.cause or None, one.interruptions, one.by_person),
            *(_seconds(part) for part in (one.detection_ms, one.restart_ms, one.lost_ms)),
            *(_seconds(one.gpu_detection_ms), _seconds(one.gpu_lost_ms)),
            *(_hours(one.gpu_detection_ms), _hours(one.gpu_lost_ms)),
        )
        for one in found
    ]
    print_rows(columns, rows, form, about)


def _cell(value: object, unit: Unit) -> str:
    """Of what is no time, so no zone matters."""
    return cell_of(value, unit, UTC)


def _seconds(ms: int | None) -> Fraction | None:
    return None if ms is None else Fraction(ms, 1000)


def _hours(ms: int | None) -> Fraction | None:
    return None if ms is None else Fraction(ms, _HOUR_MS)


def _share(ledger: WallLedger | GpuLedger, spent: Spent) -> float | None:
    whole = sum(ledger.ms.values())
    part_ms = ledger.known_ms(spent)
    return _rounded(part_ms / whole) if whole and part_ms is not None else None


def _rounded(share: float | None) -> float | None:
    """To what JSON and CSV tell of every fraction."""
    return None if share is None else round(share, 6)


def _number(ms: int | None) -> object:
    return json_value(_seconds(ms), Unit.NUMBER)

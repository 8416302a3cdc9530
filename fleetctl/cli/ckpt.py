"""`fleetctl ckpt`: which checkpoints there are, which are whole, and which one a restart takes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, print_fields, print_json, print_table
from fleetctl.cli.runs import complete_run

if TYPE_CHECKING:
    from fleetctl.checkpoint.model import Checked, Choice, Entry, Level
    from fleetctl.cli.ckpt_place import Place

Command = TypeVar("Command", bound=Callable[..., Any])
_COLUMNS = ("STEP", "AGE", "SIZE", "VALIDITY", "LEVEL", "REASON", "NAME")
_SHOWN = 50  # of `ls` without --all, and of what `resolve` passed over: each costs some reads
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def _where(command: Command) -> Command:
    """RUN_OR_PATH and --task, the same on every command."""
    command = click.option("--task", type=int, metavar="I", help="Element I of a sweep.")(command)
    return click.argument("target", metavar="RUN_OR_PATH", shell_complete=complete_run)(command)


@click.group()
def command() -> None:
    """Look at checkpoints: which are there, which are whole, which one a restart takes. Nothing is changed.

    RUN_OR_PATH is a run, a folder of checkpoints, or one checkpoint.

    \b
    Example:
      fleetctl ckpt ls RUN
      fleetctl ckpt verify /scratch/me/checkpoints
    """


@command.command("ls")
@_where
@click.option("--all", "everything", is_flag=True, help=f"Also those beyond the newest {_SHOWN}.")
@json_option
def list_them(target: str, task: int | None, everything: bool, as_json: bool) -> None:
    """List checkpoints, newest first. Manifests and headers are read, not the content.

    Exit code 0: one is valid; 11: none is; 3: cannot tell.

    \b
    Example:
      fleetctl ckpt ls RUN
      fleetctl ckpt ls RUN --json | jq '.[] | select(.validity == "valid")'
    """
    from fleetctl.checkpoint import select
    from fleetctl.checkpoint.model import Checked, Level
    from fleetctl.cli.ckpt_place import find_place

    place = find_place(app(), target, task)
    entries, passed = select.acceptable(place.names, place.fence, place.at_most_step)
    wanted = _newest_first(entries, (*passed, *place.staged))
    shown = wanted if everything else wanted[:_SHOWN]
    found = [one if isinstance(one, Checked) else _check(place, one, Level.STRUCTURE) for one in shown]
    _print(place, found, as_json=as_json)
    if len(wanted) > len(shown):
        note(f"{len(wanted) - len(shown)} more: --all")
    _conclude(place, found, target)


@command.command()
@_where
@click.option(
    "--level",
    "level_name",
    type=click.Choice(("names", "structure", "content")),
    default="content",
    show_default=True,
    help="How deep to look.",
)
@click.option("--step", type=int, metavar="N", help="Only the checkpoint of training step N. [default: all]")
@json_option
def verify(target: str, task: int | None, level_name: str, step: int | None, as_json: bool) -> None:
    """Check every checkpoint that counts, down to each byte unless --level says less.

    Exit code 0: one is valid; 11: none is; 3: cannot tell.

    \b
    Example:
      fleetctl ckpt verify RUN --step 1200
      fleetctl ckpt verify RUN --level structure --json
    """
    from fleetctl.checkpoint import select
    from fleetctl.checkpoint.model import Level
    from fleetctl.cli.ckpt_place import find_place
    from fleetctl.errors import NoValidCheckpoint

    place = find_place(app(), target, task)
    entries = select.acceptable(place.names, place.fence, None)[0]
    chosen = [entry for entry in entries if step in (None, entry.training_step)]
    if step is not None and not chosen:
        raise NoValidCheckpoint(f"there is no checkpoint of step {step}", remedy=f"fleetctl ckpt ls {target}")
    found = []
    with _progress(place, chosen, Level[level_name.upper()]) as watch:
        for entry in chosen:
            found.append(_as_deep(_check(place, entry, Level[level_name.upper()], watch), Level[level_name.upper()]))
    _print(place, found, as_json=as_json)
    bad = sum(one.validity.value != "valid" for one in found)
    if bad:
        note(f"{bad} of {len(found)} not valid")
    _conclude(place, found, target)


@command.command()
@_where
@json_option
def resolve(target: str, task: int | None, as_json: bool) -> None:
    """Print the checkpoint that a restart would take now, and why it takes no newer one.

    Exit code 0: there is one; 11: there is none; 3: cannot tell.

    \b
    Example:
      fleetctl ckpt resolve RUN
    """
    from fleetctl.checkpoint import resolve as gather
    from fleetctl.checkpoint.model import Level, Outcome
    from fleetctl.checkpoint.storage import LocalStorage
    from fleetctl.cli.ckpt_place import find_place

    place = find_place(app(), target, task)
    choice = gather.resolve(
        LocalStorage(),
        place.directory,
        place.names,
        place.fence,
        suspects=place.suspects,
        once_valid=place.once_valid,
        at_most_step=place.at_most_step,
        level=Level.STRUCTURE,
    )
    passed = _with_staged(place, choice)
    _print_choice(place, choice, passed, as_json=as_json)
    if choice.outcome is not Outcome.RESUME:
        _fail(place, choice.passed_over, choice.reason, f"fleetctl ckpt ls {target}")


def _check(place: Place, entry: Entry, level: Level, watch: Callable[[int], None] | None = None) -> Checked:
    from fleetctl.checkpoint import select
    from fleetctl.checkpoint.formats import own
    from fleetctl.checkpoint.storage import LocalStorage

    found = own.check(LocalStorage(), place.directory, entry, level, watch=watch or (lambda _: None))
    return select.as_suspect(found, place.suspects)


def _as_deep(found: Checked, asked: Level) -> Checked:
    """What was not looked at as deep as asked, and never below STRUCTURE, is not valid: it is not known."""
    from msgspec.structs import replace

    from fleetctl.checkpoint.model import Level, Validity

    reached = found.level or Level.NAMES
    if found.validity is not Validity.VALID or reached >= max(asked, Level.STRUCTURE):
        return found
    return replace(found, validity=Validity.UNKNOWN, reason=found.reason or "only its names were looked at")


def _newest_first(entries: Sequence[Entry], unread: Sequence[Checked]) -> list[Entry | Checked]:
    """All of them, foreign names last; nothing is looked into for it."""
    known: list[tuple[Any, Entry | Checked]] = [(entry.age_order, entry) for entry in entries]
    known += [(one.entry.age_order, one) for one in unread if one.entry is not None]
    foreign = sorted((one for one in unread if one.entry is None), key=lambda one: one.name)
    return [one for _, one in sorted(known, key=lambda pair: pair[0], reverse=True)] + [*foreign]


def _with_staged(place: Place, choice: Choice) -> tuple[Checked, ...]:
    """Newer saves under way belong to the answer, although no restart can take them."""
    from fleetctl.checkpoint.select import newest_first

    chosen = choice.chosen.entry if choice.chosen is not None else None
    newer = [
        one
        for one in place.staged
        if one.entry is not None and (chosen is None or one.entry.training_step > chosen.training_step)
    ]
    return newest_first((*choice.passed_over, *newer))


@contextlib.contextmanager
def _progress(place: Place, entries: Sequence[Entry], level: Level) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal while content is read; nothing in a pipe."""
    from fleetctl.checkpoint.model import Level

    if level is not Level.CONTENT or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    sizes = (_check(place, entry, Level.STRUCTURE) for entry in entries)
    total_bytes = sum(one.size_bytes or 0 for one in sizes if one.level is Level.STRUCTURE)
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("", total=total_bytes)
        yield lambda size_bytes: bar.advance(shown, size_bytes)


def _print(place: Place, found: Sequence[Checked], *, as_json: bool) -> None:
    if as_json:
        print_json([_json(place, one) for one in found])
    elif found:
        now = app().clock.now()
        print_table(_COLUMNS, [_row(one, now) for one in found])


def _print_choice(place: Place, choice: Choice, passed: Sequence[Checked], *, as_json: bool) -> None:
    if as_json:
        chosen = _json(place, choice.chosen)
        why = {"outcome": choice.outcome.value, "why": choice.reason}
        print_json({**why, **chosen, "passed_over": [_json(place, one) for one in passed]})
        return
    fields = [("outcome", choice.outcome.value), ("why", choice.reason)]
    if choice.chosen is not None and choice.chosen.entry is not None:
        fields += [
            ("step", str(choice.chosen.entry.training_step)),
            ("path", f"{place.directory}/{choice.chosen.name}"),
        ]
        fields += [("saved", f"{age} ago")] if (age := _age(choice.chosen.saved_at, app().clock.now())) else []
    for number, one in enumerate(passed[:_SHOWN]):
        fields.append(("" if number else "not", f"{one.name}  {one.validity.value}: {one.reason}"))
    print_fields(fields)
    if len(passed) > _SHOWN:
        note(f"{len(passed) - _SHOWN} more were passed over: --json")


def _json(place: Place, found: Checked | None) -> dict[str, object]:
    """The keys of a checkpoint; docs/json.md describes them. All null for none."""
    entry = found.entry if found is not None else None
    inner = ".staging/" if entry is not None and entry.staging else ""
    return {
        "name": found and found.name,
        "path": found and f"{place.directory}/{inner}{found.name}",
        "training_step": entry and entry.training_step,
        "run_id": entry and entry.run_id,
        "attempt": entry and f"{entry.attempt[0]}.{entry.attempt[1]}",
        "saved_at": found and found.saved_at and found.saved_at.isoformat(),
        "size_bytes": found and found.size_bytes,
        "validity": found and found.validity.value,
        "level": found and found.level and found.level.name.lower(),
        "reason": found and (found.reason or None),
        "bytes_read": found and found.bytes_read,
    }


def _row(found: Checked, now: datetime) -> tuple[str, ...]:
    return (
        "" if found.entry is None else str(found.entry.training_step),
        _age(found.saved_at, now),
        _size(found.size_bytes),
        found.validity.value,
        "" if found.level is None else found.level.name.lower(),
        found.reason,
        found.name,
    )


def _age(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    seconds = int((now - moment).total_seconds())
    if seconds < 0:
        return "in the future"
    unit, size_s = next(((unit, size_s) for unit, size_s in _UNITS if seconds >= size_s), ("s", 1))
    return f"{seconds // size_s}{unit}"


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return ""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _conclude(place: Place, found: Sequence[Checked], target: str) -> None:
    """Exit 0 when one is valid.

    :raises NoValidCheckpoint, CannotTell: none is, or that is not known.
    """
    if not any(one.validity.value == "valid" for one in found):
        looked = [one for one in found if place.counts(one)]
        reason = f"none of {len(looked)} is" if looked else "none that counts is there"
        _fail(place, found, reason, f"fleetctl ckpt resolve {target}")


def _fail(place: Place, found: Sequence[Checked], reason: str, ask: str) -> None:
    from fleetctl.checkpoint.model import one_line
    from fleetctl.errors import CannotTell, NoValidCheckpoint

    where = one_line(str(place.directory))
    if any(one.validity.value == "unknown" and place.counts(one) for one in found):
        raise CannotTell(f"not all checkpoints in {where} could be read: {reason}", remedy="ask again later")
    raise NoValidCheckpoint(f"no valid checkpoint in {where}: {reason}", remedy=f"`{one_line(ask)}` says more")
